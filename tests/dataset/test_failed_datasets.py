"""A dataset whose fetches failed leaves nothing in its process: no thread, no descriptor, not itself."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import HeadraceError
from tests.support.programs.waiting import until

pytestmark = pytest.mark.usefixtures('no_pauses')

ONE_SHARD = 4  # samples, and a batch


@dataclass(frozen=True)
class Places:
    """Where the data are that cannot be read; every folder of a cache is new."""

    lacking: Path
    """A remote of whose 12 shards the first 3 are there."""
    cut: Path
    """One whose shards are too short from the fourth on."""
    endpoint_url: str
    """Where nothing answers."""
    caches: Iterator[Path]

    def dataset(self, remote: Path, **options: object) -> StreamingDataset:
        return StreamingDataset(remote=str(remote), local=str(next(self.caches)), batch_size=ONE_SHARD, **options)

    def refused(self, *, with_index: bool) -> StreamingDataset:
        """One of a server that answers no more."""
        local = next(self.caches)
        if with_index:
            local.mkdir()
            shutil.copy(self.lacking / 'index.json', local)
        stream = Stream(
            remote='s3://bucket/data',
            local=str(local),
            endpoint_url=self.endpoint_url,
            region='us-east-1',
            anonymous=True,
            download_retry=0,
        )
        return StreamingDataset(streams=[stream], batch_size=ONE_SHARD)


@pytest.fixture(scope='module')
def places(tmp_path_factory, make_dataset_in):
    root = tmp_path_factory.mktemp('failing')
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    lacking, cut = (make_dataset_in(root, name, 12 * ONE_SHARD, per_shard=ONE_SHARD) for name in ('lacking', 'cut'))
    for shard in sorted(lacking.glob('*.mds'))[3:]:
        shard.unlink()
    for shard in sorted(cut.glob('*.mds'))[3:]:
        os.truncate(shard, shard.stat().st_size - 5)
    caches = (root / 'caches' / str(number) for number in itertools.count())
    (root / 'caches').mkdir()
    return Places(lacking, cut, f'http://127.0.0.1:{port}', caches)


def read(dataset: StreamingDataset, workers: int = 0) -> None:
    for _ in StreamingDataLoader(dataset, num_workers=workers):
        pass


def abandon(batches: Iterator[object]) -> None:
    next(batches)
    raise KeyError('what a trainer raises in the middle of an epoch')


WAYS: dict[str, Callable[[Places], object]] = {
    'a missing shard': lambda at: read(at.dataset(at.lacking)),
    'a missing shard, by its sample': lambda at: at.dataset(at.lacking)[-1],
    'a missing shard, in a plain pass': lambda at: list(at.dataset(at.lacking)),
    'a missing shard, under a limit': lambda at: read(at.dataset(at.lacking, cache_limit='4kb')),
    'a missing shard, and others in its place': lambda at: abandon(
        iter(StreamingDataLoader(at.dataset(at.lacking, on_bad_sample='skip', shuffle=True)))
    ),
    'a shard that is too short': lambda at: read(at.dataset(at.cut)),
    'a pass that is left': lambda at: abandon(iter(StreamingDataLoader(at.dataset(at.lacking)))),
    'a plain pass that is left': lambda at: abandon(iter(at.dataset(at.lacking))),
    'a server that answers no more': lambda at: read(at.refused(with_index=True)),
    'a server that never answered': lambda at: at.refused(with_index=False),
}
WITH_WORKERS: dict[str, Callable[[Places], object]] = {
    'a missing shard, in workers': lambda at: read(at.dataset(at.lacking), workers=1),
    'a pass that is left, with workers': lambda at: abandon(
        iter(StreamingDataLoader(at.dataset(at.lacking), num_workers=1))
    ),
}


def fail(way: Callable[[Places], object], places: Places) -> None:
    try:
        way(places)
    except (HeadraceError, KeyError):
        return
    raise AssertionError('it did not fail')


def held() -> Counter[str]:
    """Threads, descriptors and datasets of this process, without the threads that all of them share, 16 at most."""
    threads = [thread for thread in threading.enumerate() if thread.name != 'headrace-transfer']
    datasets = sum(type(one) is StreamingDataset for one in gc.get_objects())
    return Counter(threads=len(threads), descriptors=len(os.listdir('/proc/self/fd')), datasets=datasets)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def warm_up(way: Callable[[Places], object], places: Places) -> None:
    """Have what the libraries keep, and the threads that all datasets share."""
    for _ in range(4):
        fail(way, places)
    gc.collect()


@pytest.mark.parametrize('name', WAYS)
def test_datasets_that_fail_leave_nothing_even_before_garbage_is_collected(places, name):
    warm_up(WAYS[name], places)
    with without_collection():
        before = held()
        for _ in range(5):
            fail(WAYS[name], places)
        until(lambda: held() <= before)


@pytest.mark.parametrize('name', WITH_WORKERS)
def test_datasets_that_fail_in_workers_leave_nothing(places, name):
    """PyTorch's frames hold the error that they raise, so it takes a collection."""
    warm_up(WITH_WORKERS[name], places)
    before = held()
    for _ in range(2):
        fail(WITH_WORKERS[name], places)
    until(lambda: gc.collect() >= 0 and held() <= before)


@pytest.mark.slow
def test_two_thousand_failing_datasets_leave_nothing(places):
    for way in WAYS.values():
        warm_up(way, places)
    before = most = held()
    for number, way in zip(range(2000), itertools.cycle(WAYS.values()), strict=False):
        fail(way, places)
        if number % 50 == 0:
            most |= held()
    until(lambda: gc.collect() >= 0 and held() <= before)
    print(f'before and after {before}, at most {most}')
    assert most['threads'] < before['threads'] + 50
    assert most['datasets'] < before['datasets'] + 10
