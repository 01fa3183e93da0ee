"""Training loops over failing stores: real S3 requests, which a proxy breaks.

usage: python -m tests.support.pages.fault_matrix [PAGE]

Each case runs a loader to its end, or to its error. It says how many samples came before, in how many seconds.
These must be the plan's own samples from the first on: nothing lost, repeated or moved. In a page the table
replaces what stands there between two comments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.errors import (
    AccessDeniedError,
    ChecksumError,
    DiskFullError,
    HeadraceError,
    ObjectNotFoundError,
    TransferError,
)
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.stores import put_bytes
from tests.support.pages.generated_part import replace_part
from tests.support.servers.s3 import S3Server, moto_server

SAMPLES, BATCH = 240, 8
SHARD = 'GET .*shard'
START_METHODS = {'none': (0, None), 'fork': (2, 'fork'), 'spawn': (2, 'spawn'), 'forkserver': (2, 'forkserver')}
THREE_ATTEMPTS = r' failed after 3 attempts in \d+\.\d s \(.*\)\. The last one: Reading s3://.* at http://127.0.0.1'


@dataclass(frozen=True)
class Case:
    """A fault, and how it has to end."""

    name: str
    faults: Callable[[], list[Fault]]
    raises: type[Exception] | None = None
    """None: training continues as if nothing had been."""
    says: str = ''
    """Pattern of how often it was tried, if it was more than once, and of the last cause."""
    within: float = 60.0
    """Seconds, the start of workers included; on an idle machine it is a fraction of that."""
    is_disk_full: bool = False
    patience: float = 0.0
    """Seconds for which a download is tried at least, beside the three attempts; a real run's are 30."""
    timeout: float = 30.0
    """Seconds without a byte after which an attempt fails; few where the fault is that none comes."""


def first(**fault: object) -> Callable[[], list[Fault]]:
    """The first request for each shard is hit."""
    return lambda: [Fault(match=SHARD, times=1, for_each_path=True, **fault)]


CASES = [
    Case('latency of 200 ms', lambda: [Fault(match=SHARD, latency=0.2)]),
    Case('200 kB/s for each connection', lambda: [Fault(match=SHARD, rate=200_000)]),
    Case('each first connection is reset in mid-body', first(reset_after=3000)),
    Case('each first body is cut short', first(close_after=3000)),
    Case('each first connection is dropped', first(drop=True)),
    Case('each first answer is a 500', first(status=500)),
    Case('each first answer is a 503 with Retry-After', first(status=503, retry_after=1)),
    Case('each first body stalls', first(stall_after=3000), timeout=2.0),
    Case('each first answer does not begin', first(latency=60.0), timeout=2.0),
    Case('each first body has a wrong bit', first(flip_at=3000)),
    Case('500 for 3 s', lambda: [Fault(match=SHARD, skip=4, seconds=3, status=500)], patience=30.0),
    Case('503 for 3 s', lambda: [Fault(match=SHARD, skip=4, seconds=3, status=503)], patience=30.0),
    Case('no answer for 3 s', lambda: [Fault(match=SHARD, skip=4, seconds=3, drop=True)], patience=30.0),
    Case(
        '500 for ever',
        lambda: [Fault(match='GET .*shard.00007', status=500)],
        TransferError,
        f'{THREE_ATTEMPTS}.*\\(500\\)',
    ),
    Case(
        '503 for ever',
        lambda: [Fault(match='GET .*shard.00007', status=503, retry_after=1)],
        TransferError,
        f'{THREE_ATTEMPTS}.*\\(503\\)',
    ),
    Case(
        'each body of a shard stalls',
        lambda: [Fault(match='GET .*shard.00007', stall_after=0)],
        TransferError,
        f'{THREE_ATTEMPTS}.*ReadTimeoutError',
        timeout=2.0,
    ),
    Case(
        'the server is gone',
        lambda: [Fault(match=SHARD, times=6), Fault(match=SHARD, drop=True)],
        TransferError,
        f'{THREE_ATTEMPTS}.*ConnectionClosedError',
    ),
    Case(
        'a shard has always a wrong bit',
        lambda: [Fault(match='GET .*shard.00007', flip_at=3000)],
        ChecksumError,
        'fetched more than once, .*The index says that the xxh64 of shard.00007.mds is',
    ),
    Case(
        '403 for a shard',
        lambda: [Fault(match='GET .*shard.00007', status=403)],
        AccessDeniedError,
        "\\(403\\).* with credentials from 'env'",
    ),
    Case(
        '404 for a shard',
        lambda: [Fault(match='GET .*shard.00007', status=404)],
        ObjectNotFoundError,
        "the bucket '.*' exists at http://127.0.0.1.*, but not the key 'shard.00007.mds'",
    ),
    Case('the disk is full', list, DiskFullError, 'has no room for shard.* bytes are free', is_disk_full=True),
]


@dataclass(frozen=True)
class Outcome:
    """The samples, or the error, that the trainer got."""

    ids: list[int]
    seconds: float
    error: Exception | None

    def check(self, case: Case, expected: list[int]) -> None:
        """Assert that it is what the case has to end with."""
        assert self.ids == expected[: len(self.ids)], 'samples were lost, repeated or moved'
        assert self.seconds < case.within
        if case.raises is None:
            assert self.error is None, repr(self.error)
            assert self.ids == expected
        else:
            assert isinstance(self.error, case.raises), repr(self.error)
            assert isinstance(self.error, HeadraceError)
            text = str(self.error)
            named = re.search(r'Stream books \((s3://.*?)\), shard \d+ \((shard\.\d+\.mds)\)', text)
            assert named, text
            assert case.is_disk_full or '/'.join(named.groups()) in text[named.end() :], 'the URL'
            assert re.search(case.says, text[named.end() :]), text


@contextlib.contextmanager
def served_dataset(folder: Path, server: S3Server) -> Generator[str]:
    """The URL of a dataset in some 30 shards on a server. Credentials are in the environment meanwhile."""
    data = folder / 'written'
    columns = {'id': 'int', 'x': 'ndarray:float32:300'}
    with MDSWriter(out=str(data), columns=columns, size_limit=10_500, hashes=['xxh64']) as writer:
        for number in range(SAMPLES):
            writer.write({'id': number, 'x': np.full(300, number, np.float32)})
    before = dict(os.environ)
    os.environ.update(server.environment())
    try:
        bucket = server.new_bucket()
        for path in data.iterdir():
            put_bytes(server.store(bucket), path.name, path.read_bytes())
        yield f's3://{bucket}'
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_loader(
    case: Case, url: str, endpoint_url: str, local: Path, workers: int, method: str | None
) -> StreamingDataLoader:
    """The loader of a case, of three attempts at least."""
    from headrace import Stream

    stream = Stream(
        remote=url,
        local=str(local),
        name='books',
        endpoint_url=endpoint_url,
        validate_hash='xxh64',
        download_timeout=case.timeout,
        download_retry=2,
    )
    dataset = StreamingDataset(streams=[stream], shuffle=True, shuffle_seed=5)
    cache = dataset.pool.streams[0].cache
    cache.retry = dataclasses.replace(cache.retry, patience=case.patience)
    vars(dataset.pool.streams[0])['cache'] = pickle.loads(
        pickle.dumps(cache)
    )  # as in a worker, it begins with that retry
    return StreamingDataLoader(dataset, BATCH, num_workers=workers, multiprocessing_context=method)


def expected_ids(url: str, server: S3Server, local: Path) -> list[int]:
    """The order of an undisturbed run."""
    loader = make_loader(Case('nothing', list), url, server.endpoint_url, local, 0, None)
    return [number for batch in loader for number in batch['id'].tolist()]


def run(case: Case, url: str, server: S3Server, local: Path, workers: int, method: str | None) -> Outcome:
    """Iterate until the end, or until something is raised."""
    ids: list[int] = []
    error = None
    with FaultProxy(server.endpoint_url) as proxy:
        loader = make_loader(case, url, proxy.endpoint_url, local, workers, method)
        proxy.faults = case.faults()
        begin = time.monotonic()
        try:
            for batch in loader:
                assert (batch['x'][:, 0].long() == batch['id']).all()
                ids += batch['id'].tolist()
        except Exception as raised:
            error = raised
        seconds = time.monotonic() - begin
    return Outcome(ids, seconds, error)


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[Path]:
    """A file system of 128 KiB; `PermissionError` if this user cannot mount one."""
    folder.mkdir()
    if os.geteuid() or os.system(f'mount -t tmpfs -o size=128k tmpfs {folder} 2>/dev/null'):
        raise PermissionError('A disk that is full needs the right to mount one.')
    try:
        yield folder
    finally:
        os.system(f'umount -l {folder}')  # what is mapped of it may be so still


def rows() -> Iterator[str]:
    """The table, row by row."""
    yield '| fault | samples handed out | then | seconds without workers | with two, the slowest |'
    yield '|---|---|---|---|---|'
    with (
        tempfile.TemporaryDirectory() as name,
        moto_server() as server,
        served_dataset(Path(name), server) as url,
    ):
        folder = Path(name)
        expected = expected_ids(url, server, folder / 'undisturbed')
        for number, case in enumerate(CASES):
            outcomes: list[Outcome] = []
            for start, (workers, method) in START_METHODS.items():
                local = folder / f'{number}-{start}'
                with small_disk(local) if case.is_disk_full else contextlib.nullcontext():
                    outcomes.append(run(case, url, server, local, workers, method))
                outcomes[-1].check(case, expected)
            given = ', '.join(dict.fromkeys(str(len(each.ids)) for each in outcomes))
            then = 'the end of the epoch' if case.raises is None else f'`{type(outcomes[0].error).__name__}`'
            alone, *with_workers = (each.seconds for each in outcomes)
            yield f'| {case.name} | {given} | {then} | {alone:.1f} | {max(with_workers):.1f} |'


def main() -> None:
    """Print the table, and put it into a page."""
    lines: list[str] = []
    for row in rows():
        print(row, flush=True)
        lines.append(f'{row}\n')
    if len(sys.argv) > 1:
        replace_part(Path(sys.argv[1]), 'faults', ''.join(lines))


if __name__ == '__main__':
    main()
