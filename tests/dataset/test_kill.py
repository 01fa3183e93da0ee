"""kill -9 at any moment costs nothing: the next start continues exactly, under the limit, and clears up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from headrace import MDSWriter
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.stores import put_bytes
from tests.support import support_file
from tests.support.programs.processes import Program, clean_environment, is_alive
from tests.support.programs.waiting import until
from tests.support.servers.s3 import moto_server

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform != 'linux', reason='processes are looked at in /proc'),
]

SAMPLES = 244  # 24 shards of ten and one of four; the last global batch is half a one
SHM = Path('/dev/shm')


@dataclass(frozen=True)
class Data:
    """The same samples as they are, and compressed."""

    raw: Path
    packed: Path
    files: dict[str, Path]
    """By the name of what is read, a folder with all files that a cache of it may hold."""
    size: int


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp('data')
    columns = {'id': 'int', 'row': 'ndarray:float32:150'}
    for name, compression in (('raw', None), ('packed', 'zstd')):
        with MDSWriter(out=str(folder / name), columns=columns, size_limit=6800, compression=compression) as writer:
            for number in range(SAMPLES):
                # Random, so that a compressed file is no smaller.
                row = np.random.default_rng(number).standard_normal(150).astype(np.float32)
                row[0] = number
                writer.write({'id': number, 'row': row})
        files = folder / f'{name}-files'
        files.mkdir()
        for path in (folder / name).iterdir():
            (files / path.name).write_bytes(path.read_bytes())
            if path.suffix == '.zstd':
                (files / path.stem).write_bytes(zstandard.ZstdDecompressor().decompress(path.read_bytes(), 1 << 20))
    size = sum(path.stat().st_size for path in (folder / 'raw').glob('*.mds'))
    return Data(folder / 'raw', folder / 'packed', {n: folder / f'{n}-files' for n in ('raw', 'packed')}, size)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A slow S3 server with the files of a folder: its URL, and the environment in which that is found."""
    with moto_server() as server, FaultProxy(server.endpoint_url) as proxy:
        environ = {**server.environment(), 'S3_ENDPOINT_URL': proxy.endpoint_url}
        before = dict(os.environ)
        os.environ.update(server.environment())
        try:
            bucket = server.new_bucket()
            for path in folder.iterdir():
                put_bytes(server.store(bucket), path.name, path.read_bytes())
        finally:
            os.environ.clear()
            os.environ.update(before)
        proxy.faults = [Fault(match='GET', latency=0.003, rate=1_000_000)]
        yield f's3://{bucket}', environ


def run_chain(data: Data, folder: Path, kind: str, kills: int) -> dict[str, Any]:
    """Run the chain of a kind, look for what it left outside of the cache, and return its report."""
    name = 'raw' if kind == 'raw' else 'packed'
    remote = data.raw if name == 'raw' else data.packed
    temporary = folder / 'temporary'
    temporary.mkdir()
    limit = data.size // 3 + (remote / 'index.json').stat().st_size
    with contextlib.ExitStack() as stack:
        url, environ = f'slow://{remote}', dict[str, str]()
        if kind == 's3':
            url, environ = stack.enter_context(served(remote))
        chain = {
            'remote': url,
            'order': str(data.raw),
            'files': str(data.files[name]),
            'folder': str(folder),
            'limit': limit,
            'kills': kills,
            'seed': kills,
            'keep_zip': kind == 'zstd',
            'ledger': kind == 's3',
        }
        given, out = folder / 'chain.json', folder / 'report.json'
        given.write_text(json.dumps(chain))
        command = [sys.executable, str(support_file('programs/kill_chain.py')), str(given), str(out)]
        environ = clean_environment(**environ, TMPDIR=str(temporary))
        program = stack.enter_context(Program(command, cwd=folder, environ=environ))
        done = program.wait(100 + 8 * kills)
        assert done.returncode == 0, done.stderr[-8000:]
    report = json.loads(out.read_text())
    assert report['verdict'].startswith('exact')
    assert 0.8 * limit < report['most'] <= limit
    assert report['samples'] > 10 * kills

    pids = set(map(str, report['pids']))
    left = [path.name for path in SHM.iterdir()]
    assert not [name for name in left if name.startswith('torch_') and name.split('_')[1] in pids]
    # Python makes a semaphore under a name, and removes that at once. A kill in between leaves 32 bytes without a use.
    semaphores = list(SHM.glob(f'sem.kill-chain-{program.process.pid}-*'))
    for path in semaphores:
        path.unlink()
    assert len(semaphores) <= 1 + kills // 20
    # Workers hand tensors on by sockets in temporary folders of multiprocessing's, which stay where they are killed.
    sockets = list(temporary.iterdir())
    assert len(sockets) <= len(pids)
    for path in sockets:
        assert path.name.startswith('pymp-')
        assert all(stat.S_ISSOCK(file.stat().st_mode) for file in path.iterdir())
    return report


KINDS = ['raw', 'zstd', pytest.param('s3', marks=pytest.mark.s3)]


@pytest.mark.parametrize(
    'kind',
    [
        pytest.param('raw', marks=pytest.mark.slow),
        'zstd',
        pytest.param('s3', marks=[pytest.mark.s3, pytest.mark.slow]),
    ],
)
def test_20_kills(data, tmp_path, kind):
    report = run_chain(data, tmp_path, kind, {'raw': 8, 'zstd': 7, 's3': 5}[kind])
    assert report['left_most']
    assert len(report['orphan_seconds']) > (kind != 's3')


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize('kind', KINDS)
def test_200_kills(data, tmp_path, kind):
    report = run_chain(data, tmp_path, kind, {'raw': 80, 'zstd': 70, 's3': 50}[kind])
    hit = {'index', 'lock', 'download', 'nothing'} | ({'unpacking'} if kind != 'raw' else set())
    assert hit <= set(report['found'])
    assert len(report['orphan_seconds']) > 5
    assert {(1, 0), (2, 2), (4, 2)} <= set(map(tuple, report['topologies']))


# -- workers whose rank was killed, in the middle of what never ends ---------------------------------------------------


@pytest.mark.parametrize(
    ('loader', 'method'),
    [
        ('StreamingDataLoader', 'fork'),
        pytest.param('DataLoader', 'fork', marks=pytest.mark.slow),
        pytest.param('StreamingDataLoader', 'spawn', marks=pytest.mark.slow),
        pytest.param('StreamingDataLoader', 'forkserver', marks=pytest.mark.slow),
    ],
)
def test_workers_end_with_their_rank(make_dataset, tmp_path, loader, method):
    remote = make_dataset('remote', 60)
    environ = clean_environment(TMPDIR=str(tmp_path))
    with contextlib.ExitStack() as stack:
        workers: list[int] = []
        programs: list[Program] = []
        for doing in ('waiting', 'sending'):
            local = tmp_path / doing
            arguments = [str(remote), str(local), '2', doing, loader, method]
            command = [sys.executable, str(support_file('programs/orphans.py')), *arguments]
            programs.append(stack.enter_context(Program(command, cwd=tmp_path, environ=environ)))
        for doing, program in zip(('waiting', 'sending'), programs, strict=True):
            log = tmp_path / f'{doing}.workers'
            until(lambda of=program, log=log: of.process.poll() or (log.exists() and len(log.read_text().split()) == 2))
            assert program.process.poll() is None
            workers += map(int, log.read_text().split())
        time.sleep(1)  # until the pipes are full
        assert all(map(is_alive, workers))
        for program in programs:
            program.process.send_signal(signal.SIGKILL)
        until(lambda: not any(map(is_alive, workers)))
