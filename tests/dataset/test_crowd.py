"""Many processes start on one cache folder at once, and die there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

PROGRAM = Path(__file__).with_name('crowd.py')


def start(
    remote: Path, local: Path, log: Path, *, seconds: float, datasets: int, hang_from: int = 0
) -> subprocess.Popen[str]:
    temporary = local.parent / 'temporary'
    temporary.mkdir(exist_ok=True)
    arguments = map(str, [remote, local, log, seconds, datasets, hang_from])
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, 'TMPDIR': str(temporary)},
    )


def maps_shared_memory(process: subprocess.Popen[str]) -> bool:
    return '/dev/shm' in Path(f'/proc/{process.pid}/maps').read_text()


@pytest.mark.timeout(600)
def test_16_processes_make_20_datasets_each_and_fetch_every_shard_once(make_dataset, tmp_path):
    remote, local, log = make_dataset('remote', 100), tmp_path / 'local', tmp_path / 'log'
    crowd = [start(remote, local, log, seconds=0.01, datasets=20) for _ in range(16)]
    outputs = [process.communicate(timeout=500)[0] for process in crowd]
    assert [process.returncode for process in crowd] == [0] * 16
    assert sum(output.count('made') for output in outputs) == 320
    fetched = Counter(log.read_text().split())
    assert set(fetched.values()) == {1}
    assert set(fetched) == {path.name for path in remote.iterdir()}
    assert {path.name for path in local.iterdir()} == {'.headrace-remote', *fetched}


@pytest.mark.timeout(600)
@pytest.mark.parametrize('compression', [None, 'zstd'], ids=['raw', 'zstd'])
def test_after_kill_9_in_mid_download_the_next_start_fetches_only_what_was_missing(make_dataset, tmp_path, compression):
    remote = make_dataset('remote', 100, per_shard=8, compression=compression)
    local, log = tmp_path / 'local', tmp_path / 'log'
    # The index and four shards come; of the fifth shard, which is under way from then on, nothing does.
    crowd = [start(remote, local, log, seconds=0.05, datasets=1, hang_from=6) for _ in range(8)]
    while not log.exists() or len(log.read_text().split()) < 6:
        assert all(process.poll() is None for process in crowd)
        time.sleep(0.02)
    assert not any(maps_shared_memory(process) for process in crowd)
    for process in crowd:
        os.kill(process.pid, signal.SIGKILL)
    for process in crowd:
        process.communicate()
    assert not list((tmp_path / 'temporary').iterdir())
    complete = {path.name for path in local.iterdir() if path.name.endswith('.mds')}
    assert complete
    shards = len(list(remote.iterdir())) - 1
    assert len(complete) < shards
    already = len(log.read_text().split())
    after = start(remote, local, log, seconds=0, datasets=1)
    begin = time.monotonic()
    assert 'read' in after.communicate(timeout=120)[0]
    assert after.returncode == 0
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
