"""A cache folder that somebody deletes in mid-epoch costs downloads, and no sample."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import CacheError, StorageError
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import CountingStore

SAMPLES = 300


class Deleting(CountingStore):
    """Deletes a folder while it serves one of every three shards for the first time, whichever process asks."""

    def __init__(self, folder: Path, cache: Path, marks: Path) -> None:
        super().__init__(LocalStore(folder))
        self._cache, self._marks = cache, marks

    def get(self, key: str, out: object, **how: object) -> str:
        """As `Store.get`."""
        try:
            number = int(key.split('.')[1])
            os.close(os.open(self._marks / key, os.O_CREAT | os.O_EXCL))
        except (ValueError, IndexError, FileExistsError):
            number = 1
        if number % 3 == 0:
            shutil.rmtree(self._cache, ignore_errors=True)
        return super().get(key, out, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ('workers', 'persistent', 'limit'),
    [
        (0, False, None),
        (0, False, 6000),
        (2, False, None),
        pytest.param(2, False, 6000, marks=pytest.mark.slow),
        (2, True, None),
        (2, True, 6000),
    ],
)
def test_shards_that_are_on_their_way_arrive(
    make_dataset: Callable[..., Path], tmp_path: Path, limit: int | None, persistent: bool, workers: int
) -> None:
    remote, cache, marks = make_dataset('remote', SAMPLES), tmp_path / 'cache', tmp_path / 'marks'
    marks.mkdir()
    register_store('deleting', lambda url, _: Deleting(Path(url.removeprefix('deleting://')), cache, marks))
    dataset = StreamingDataset(
        remote=f'deleting://{remote}', local=str(cache), batch_size=10, shuffle=True, cache_limit=limit
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=persistent, topology=Topology())
    for _ in range(2):
        assert sorted(i for batch in loader for i in batch['id'].tolist()) == list(range(SAMPLES))
    assert len(list(marks.iterdir())) == len(list(remote.glob('*.mds')))


@pytest.mark.parametrize('method', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_workers_begin_an_epoch_after_it_was_deleted(
    make_dataset: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    """With an order and a selection that are kept in files of the folder."""
    remote, cache = make_dataset('remote', SAMPLES), tmp_path / 'cache'
    dataset = StreamingDataset(
        remote=str(remote), local=str(cache), batch_size=10, shuffle=True, where={'id': {'below': 200}}
    )
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context=method, topology=Topology())
    for epoch in range(2):
        seen: list[int] = []
        for batch in loader:
            seen += batch['id'].tolist()
            if epoch == 0 and len(seen) == 100:
                shutil.rmtree(cache, ignore_errors=True)
        assert sorted(seen) == list(range(200))
        shutil.rmtree(cache, ignore_errors=True)


class Failing(LocalStore):
    """Does something before it serves a shard."""

    def __init__(self, folder: Path, action: Callable[[], None]) -> None:
        super().__init__(folder)
        self._action = action

    def get(self, key: str, out: object, **how: object) -> str:
        """As `Store.get`."""
        if key != 'index.json':
            self._action()
        return super().get(key, out, **how)  # type: ignore[arg-type]


def read_first(make_dataset: Callable[..., Path], cache: Path, action: Callable[[], None]) -> None:
    remote = make_dataset('remote', 20)
    register_store('failing', lambda url, _: Failing(Path(url.removeprefix('failing://')), action))
    _ = StreamingDataset(remote=f'failing://{remote}', local=str(cache), batch_size=10)[0]


@pytest.mark.parametrize('missing', ['sign-in-tool', '/etc/no-credentials', None])
def test_a_file_that_a_client_of_a_store_misses_is_named(
    make_dataset: Callable[..., Path], tmp_path: Path, missing: str | None
) -> None:
    calls: list[str | None] = []

    def fail() -> None:
        calls.append(missing)
        raise FileNotFoundError(errno.ENOENT, 'No such tool', missing)

    with pytest.raises(StorageError, match='FileNotFoundError: .*No such tool'):
        read_first(make_dataset, tmp_path / 'cache', fail)
    assert len(calls) == 1


def test_the_error_for_a_cache_that_is_deleted_each_time_says_what_was_missing(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(CacheError, match='was deleted as often') as failed:
        read_first(make_dataset, tmp_path / 'cache', lambda: shutil.rmtree(tmp_path / 'cache'))
    # The error with the place of the sample, that of the cache, and that of the disk.
    assert isinstance(failed.value.__cause__, CacheError)
    assert isinstance(failed.value.__cause__.__cause__, FileNotFoundError)
