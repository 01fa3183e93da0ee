"""Many processes start on one cache folder at once, and die there."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support import support_file
from tests.support.programs.processes import Program, clean_environment, is_alive
from tests.support.programs.waiting import until

pytestmark = pytest.mark.once

PROGRAM = support_file('programs/crowd.py')


def start(
    remote: Path, local: Path, log: Path, *, count: int, seconds: float, datasets: int, hang_from: int = 0
) -> Program:
    temporary = local.parent / 'temporary'
    temporary.mkdir(exist_ok=True)
    arguments = map(str, [remote, local, log, count, seconds, datasets, hang_from])
    return Program([sys.executable, str(PROGRAM), *arguments], environ=clean_environment(TMPDIR=str(temporary)))


def maps_shared_memory(pid: int) -> bool:
    return '/dev/shm' in Path(f'/proc/{pid}/maps').read_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(('count', 'datasets'), [(6, 2), pytest.param(16, 20, marks=pytest.mark.slow)])
def test_processes_make_datasets_and_fetch_every_shard_once(make_dataset, tmp_path, count, datasets):
    remote, local, log = make_dataset('remote', 100), tmp_path / 'local', tmp_path / 'log'
    with start(remote, local, log, count=count, seconds=0.01, datasets=datasets) as crowd:
        done = crowd.wait(500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('made') == count * datasets
    fetched = Counter(log.read_text().split())
    assert set(fetched.values()) == {1}
    assert set(fetched) == {path.name for path in remote.iterdir()}
    assert {path.name for path in local.iterdir()} == {'.headrace-remote', *fetched}


@pytest.mark.timeout(600)
@pytest.mark.parametrize('compression', [pytest.param(None, marks=pytest.mark.slow), 'zstd'], ids=['raw', 'zstd'])
def test_after_kill_9_in_mid_download_the_next_start_fetches_only_what_was_missing(make_dataset, tmp_path, compression):
    remote = make_dataset('remote', 100, per_shard=8, compression=compression)
    local, log = tmp_path / 'local', tmp_path / 'log'
    # The index and four shards come; of the fifth shard, which is under way from then on, nothing does.
    with start(remote, local, log, count=8, seconds=0.05, datasets=1, hang_from=6) as crowd:
        until(lambda: crowd.process.poll() is not None or (log.exists() and len(log.read_text().split()) >= 6))
        pids = [int(word) for word in crowd.output().split() if word.isdecimal()]
        assert len(pids) == 8
        assert all(map(is_alive, pids))
        assert not any(map(maps_shared_memory, pids))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert crowd.wait().returncode == 8  # all of them
    assert not list((tmp_path / 'temporary').iterdir())
    complete = {path.name for path in local.iterdir() if path.name.endswith('.mds')}
    assert complete
    shards = len(list(remote.iterdir())) - 1
    assert len(complete) < shards
    already = len(log.read_text().split())
    begin = time.monotonic()
    with start(remote, local, log, count=1, seconds=0, datasets=1) as after:
        done = after.wait(120)
    assert done.returncode == 0, done.stderr
    assert 'read' in done.stdout
    assert time.monotonic() - begin < 60
    again = log.read_text().split()[already:]
    assert len(again) == len(set(again)) == shards - len(complete)
    assert 'index.json' not in again
    assert sorted(path.name for path in local.iterdir()) == [
        '.headrace-remote',
        'index.json',
        *(f'shard.{i:05}.mds' for i in range(shards)),
    ]
    assert not list((tmp_path / 'temporary').iterdir())
