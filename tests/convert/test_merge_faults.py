"""Merges whose system calls fail, once or for good: the old index or the new one is there, and no sample is lost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headrace import LocalDataset, MDSWriter
from headrace.convert import kept_indexes, merge_index
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.failing_calls import DISK, FULL, STOP, calls_of, in_a_child

ERRORS = [
    pytest.param(DISK, id='disk'),
    pytest.param(FULL, id='full', marks=pytest.mark.slow),
    pytest.param(STOP, id='ctrl-c'),
]
MERGED, OWN, LATER = range(20), range(20, 30), range(30, 40)


def write(folder: Path, ids: Iterable[int], **options: object) -> None:
    with MDSWriter(out=str(folder), columns={'id': 'int'}, size_limit=300, **options) as writer:
        for i in ids:
            writer.write({'id': i})


def ids(folder: Path) -> list[int]:
    """The samples of a folder, whose index names only whole shards."""
    for shard in json.loads((folder / 'index.json').read_text())['shards']:
        assert (folder / shard['raw_data']['basename']).stat().st_size == shard['raw_data']['bytes']
    return sorted(sample['id'] for sample in LocalDataset(str(folder)))


@pytest.fixture(params=['folder', 'store'])
def make(request: pytest.FixtureRequest, tmp_path: Path, own_stores: None) -> Callable[[], tuple[str, Path]]:
    """A function that makes an `out` and its folder: a merge of two parts, an own shard, and a part to add."""
    register_store('objects', lambda url, _: LocalStore(Path(url.removeprefix('objects://'))))
    numbers = itertools.count()

    def make() -> tuple[str, Path]:
        folder = tmp_path / f'out-{next(numbers)}'
        write(folder / 'a', MERGED[:10])
        write(folder / 'b', MERGED[10:])
        merge_index(str(folder))
        write(folder, OWN, append=True)
        write(folder / 'c', LATER)
        return (str(folder) if request.param == 'folder' else f'objects://{folder}'), folder

    return make


def fail_at(
    moments: Callable[[int], Iterable[int]],
    make: Callable[[], tuple[str, Path]],
    tmp_path: Path,
    error: BaseException,
    *,
    for_good: bool = False,
) -> None:
    """Fail the calls of a merge with these numbers, and merge again."""
    out, folder = make()
    old, whole = list(range(30)), list(range(40))
    assert ids(folder) == old
    calls = calls_of(lambda: merge_index(out), tmp_path / 'out-', error, reads=True)
    assert ids(folder) == whole
    for at in moments(calls):
        out, folder = make()
        outcome, _ = in_a_child(
            lambda out=out: merge_index(out), tmp_path / 'out-', at, error, for_good=for_good, reads=True
        )
        assert ids(folder) in ([whole] if outcome == 'done' else [old, whole]), (at, outcome)
        assert [ids(folder / part) for part in 'abc'] == [whole[:10], whole[10:20], whole[30:]], (at, outcome)
        kinds = ['done', 'TransferError', 'DiskFullError', 'StorageError', 'KeyboardInterrupt']
        assert outcome.partition(':')[0] in kinds, (at, outcome)
        merge_index(out)
        assert ids(folder) == whole, (at, outcome)
        assert len(old) in [kept.samples for kept in kept_indexes(folder)], (at, outcome)


@pytest.mark.parametrize('error', ERRORS)
def test_any_call_fails_once(make: Callable[[], tuple[str, Path]], tmp_path: Path, error: BaseException) -> None:
    fail_at(lambda calls: [*range(1, calls - 9, 13), *range(calls - 9, calls + 1, 3)], make, tmp_path, error)


@pytest.mark.slow
@pytest.mark.parametrize('for_good', [False, True])
@pytest.mark.parametrize('error', ERRORS)
def test_every_call_fails(
    make: Callable[[], tuple[str, Path]], tmp_path: Path, error: BaseException, for_good: bool
) -> None:
    fail_at(lambda calls: range(1, calls + 1), make, tmp_path, error, for_good=for_good)
