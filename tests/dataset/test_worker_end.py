"""How workers end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from processes import run_program


@pytest.mark.once
def test_spawned_workers_end_without_a_word(make_dataset):
    folder = make_dataset('data', 40)
    program = Path(__file__).with_name('busy_workers.py')
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ['10'] * 3), done.stderr
    assert 'terminate' not in done.stderr


@pytest.mark.once
@pytest.mark.parametrize('end', ['left', 'alive'])
@pytest.mark.parametrize(
    ('workers', 'method', 'loader'),
    [
        (0, 'fork', 'StreamingDataLoader'),
        (2, 'fork', 'StreamingDataLoader'),
        pytest.param(2, 'fork', 'DataLoader', marks=pytest.mark.slow),
        pytest.param(2, 'spawn', 'StreamingDataLoader', marks=pytest.mark.slow),
        pytest.param(2, 'forkserver', 'StreamingDataLoader', marks=pytest.mark.slow),
    ],
)
def test_what_is_fetched_ahead_as_they_end_leaves_nothing(make_dataset, tmp_path, workers, method, loader, end):
    remote = make_dataset('remote', 60)
    program = Path(__file__).with_name('leaving.py')
    given = [remote, tmp_path / 'local', workers, method, loader, end]
    done = run_program([sys.executable, str(program), *map(str, given)], cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {'.lock', '.raw'}
    assert sorted(path.name for path in (tmp_path / 'local').iterdir()) == ['index.json', 'shard.00000.mds']
