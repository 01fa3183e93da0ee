"""Readers whose system calls fail, once or for good: right samples, or an error of headrace's that names a path."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import pytest

import headrace.errors
from headrace import StreamingDataset
from headrace.storage import ObjectInfo, register_store
from tests.support.programs.failing_calls import DISK, FULL, calls_of, in_a_child

N = 24
ERRORS = [pytest.param(DISK, id='disk'), pytest.param(FULL, id='full')]


class Memory:
    """A store whose objects are in memory: no file operation is its own."""

    def __init__(self, url: str, objects: dict[str, bytes]) -> None:
        self.url, self.objects = url, objects

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        del etag
        out.write(self.objects[key][offset:] if size is None else self.objects[key][offset : offset + size])
        return '1'

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.objects[key]), '1')

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        return [self.head(key) for key in self.objects if key.startswith(prefix)]


@pytest.fixture
def cache(make_dataset: Callable[..., Path], tmp_path: Path, own_stores: None) -> Callable[[], Path]:
    """A function that names a new cache folder."""
    folder = make_dataset('written', N, per_shard=8, compression='zstd')
    objects = {path.name: path.read_bytes() for path in folder.iterdir()}
    register_store('memory', lambda url, _: Memory(url, objects))
    numbers = itertools.count()
    return lambda: tmp_path / f'cache-{next(numbers)}'


def read(cache: Path, limit: int | None) -> None:
    """Open a dataset and read it: each sample once."""
    dataset = StreamingDataset(remote='memory://data', local=str(cache), batch_size=4, cache_limit=limit)
    assert sorted(sample['id'] for sample in dataset) == list(range(N))


def fail_at(
    moments: Callable[[int], Iterable[int]],
    make: Callable[[], Path],
    tmp_path: Path,
    error: OSError,
    *,
    limit: int | None,
    filled: bool,
    for_good: bool = False,
) -> None:
    """Fail the calls of a reader with these numbers, and read the same folder again without failures."""

    def begun() -> Path:
        cache = make()
        if filled:
            read(cache, limit)
        return cache

    cache = begun()
    calls = calls_of(lambda: read(cache, limit), tmp_path / 'cache-', error, reads=True)
    for at in moments(calls):
        cache = begun()
        outcome, _ = in_a_child(
            lambda cache=cache: read(cache, limit), tmp_path / 'cache-', at, error, for_good=for_good, reads=True
        )
        if outcome != 'done':
            kind, _, message = outcome.partition(': ')
            assert issubclass(getattr(headrace.errors, kind, int), headrace.errors.HeadraceError), (at, outcome)
            assert str(cache) in message, (at, outcome)
        read(cache, limit)


@pytest.mark.parametrize('filled', [False, True])
@pytest.mark.parametrize('error', ERRORS)
def test_any_call_fails_once(cache: Callable[[], Path], tmp_path: Path, error: OSError, filled: bool) -> None:
    fail_at(lambda calls: range(1, calls + 1, 11), cache, tmp_path, error, limit=None, filled=filled)


@pytest.mark.slow
@pytest.mark.parametrize('limit', [None, 1 << 20])
@pytest.mark.parametrize('filled', [False, True])
@pytest.mark.parametrize('for_good', [False, True])
@pytest.mark.parametrize('error', ERRORS)
def test_every_call_fails(
    cache: Callable[[], Path], tmp_path: Path, error: OSError, for_good: bool, filled: bool, limit: int | None
) -> None:
    fail_at(lambda calls: range(1, calls + 1), cache, tmp_path, error, limit=limit, filled=filled, for_good=for_good)
