"""Parts of datasets: attempts that fail, are lost, come twice or come late leave neither duplicates nor holes."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LocalDataset
from headrace.convert.parts import PartedDataset, PartWriter, WrittenPart
from headrace.errors import ConfigError, StorageError
from headrace.storage import register_store
from tests.support.programs import failing_calls
from tests.support.programs.failing_calls import DISK, STOP, calls_of
from tests.support.stores.object_store import ObjectStore
from tests.support.suite.example_counts import scaled

COLUMNS = {'id': 'int', 'text': 'str'}
OPTIONS = {'size_limit': 400, 'compression': 'zstd'}

# The outcome of one attempt at a task.
FATES = ('wins', 'finishes', 'fails', 'is lost')


def rows_of(task: int, count: int) -> list[dict[str, Any]]:
    return [{'id': 1000 * task + i, 'text': 'x' * i} for i in range(count)]


def attempt(writer: PartWriter, task: int, rows: list[dict[str, Any]], fate: str) -> WrittenPart | None:
    if fate == 'is lost':  # as a killed process: what it wrote stays, and it writes no more
        # An `ObjectStore` is in the memory of this process.
        child = -1 if str(writer.remote).startswith('objects:') else os.fork()
        if child > 0:
            os.waitpid(child, 0)
            return None
        part = writer.open(task)
        for row in rows:
            part.add(row)
        if not child:
            os._exit(0)
        return None
    try:
        with writer.open(task) as part:
            for i, row in enumerate(rows):
                part.add(row)
                if fate == 'fails' and i == len(rows) // 2:
                    raise ZeroDivisionError
            return part.finish()
    except ZeroDivisionError:
        return None


def run(dataset: PartedDataset, schedule: list[tuple[int, list[str]]], **options: Any) -> list[dict[str, Any]]:
    """Write a dataset as an engine does that counts one attempt for each task; return its samples."""
    writer, counted, expected = dataset.begin(), list[WrittenPart](), list[dict[str, Any]]()
    for task, (count, fates) in enumerate(schedule):
        rows = rows_of(task, count)
        for fate in fates:
            done = attempt(writer, task, rows, fate)
            if fate == 'wins':
                assert done is not None
                counted.append(done)
        expected += rows
    dataset.finish(reversed(counted), **options)
    return expected


def files_below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob('*') if path.is_file()}


def listed(root: Path) -> set[str]:
    shards = json.loads((root / 'index.json').read_text())['shards']
    return {(shard['zip_data'] or shard['raw_data'])['basename'] for shard in shards}


def samples(root: Path) -> list[dict[str, Any]]:
    return [dict(sample) for sample in LocalDataset(str(root))]


fates = st.lists(st.sampled_from(FATES[1:]), max_size=3).flatmap(
    lambda others: st.integers(0, len(others)).map(lambda i: [*others[:i], 'wins', *others[i:]])
)
schedules = st.lists(st.tuples(st.integers(0, 40), fates), min_size=1, max_size=4).filter(
    lambda schedule: any(count for count, _ in schedule)
)


@settings(max_examples=scaled(20))
@given(schedules, st.booleans())
def test_each_task_counts_once_and_nothing_is_left_over(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[tuple[int, list[str]]], has_remote: bool
) -> None:
    folder = tmp_path_factory.mktemp('parts')
    root = folder / 'remote' if has_remote else folder / 'local'
    out: Any = (str(folder / 'local'), str(root)) if has_remote else str(root)

    expected = run(PartedDataset(out, COLUMNS, OPTIONS), schedule)

    indexes = {name for name in files_below(root) if re.fullmatch(r'part-\d{5}-[\w-]+/index.json', name)}
    assert files_below(root) == listed(root) | indexes | {'index.json'}
    assert len(indexes) == sum(count > 0 for count, _ in schedule)
    if has_remote:
        assert files_below(folder / 'local') == set()
    assert samples(root) == expected  # unpacks the shards
    shutil.rmtree(folder)


SCHEDULE = [(30, ['fails', 'wins']), (0, ['wins']), (25, ['is lost', 'wins', 'finishes'])]


def test_without_merging_each_part_is_a_dataset(tmp_path: Path) -> None:
    expected = run(PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS), SCHEDULE, merge_index=False)
    parts = sorted((tmp_path / 'd').iterdir())
    assert len(parts) == 2
    assert [row for part in parts for row in samples(part)] == expected


@pytest.mark.usefixtures('own_stores')
def test_objects_of_a_store_that_do_not_count_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectStore, 'objects', {})
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path / 'tmp'))
    (tmp_path / 'tmp').mkdir()
    register_store('objects', ObjectStore)

    expected = run(PartedDataset('objects://bucket/data', COLUMNS, OPTIONS), SCHEDULE)

    for name, data in ObjectStore.objects['bucket'].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    root = tmp_path / 'data'
    assert {name for name in files_below(root) if not name.endswith('index.json')} == listed(root)
    assert samples(root) == expected


def test_local_copies_are_kept_on_request(tmp_path: Path) -> None:
    out = (str(tmp_path / 'local'), str(tmp_path / 'remote'))
    expected = run(PartedDataset(out, COLUMNS, {**OPTIONS, 'keep_local': True}), SCHEDULE)
    assert samples(tmp_path / 'local') == samples(tmp_path / 'remote') == expected


@pytest.mark.parametrize('has_remote', [False, True])
def test_an_attempt_that_still_runs_when_the_dataset_is_done_adds_nothing(tmp_path: Path, has_remote: bool) -> None:
    root = tmp_path / 'd'
    dataset = PartedDataset((str(tmp_path / 'local'), str(root)) if has_remote else str(root), COLUMNS, OPTIONS)
    writer = dataset.begin()
    late = writer.open(0)
    late.add(rows_of(0, 1)[0])
    done = attempt(writer, 0, rows_of(0, 20), 'wins')
    assert done is not None
    dataset.finish([done])
    before = files_below(root)

    with pytest.raises((StorageError, FileNotFoundError)), late:
        for row in rows_of(0, 200):
            late.add(row)
        late.finish()
    with pytest.raises(ConfigError, match='lacks the mark'):
        writer.open(0)
    assert files_below(root) == before
    assert samples(root) == rows_of(0, 20)


def test_a_driver_that_fails_deletes_all_parts(tmp_path: Path) -> None:
    dataset = PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS)
    writer = dataset.begin()
    attempt(writer, 0, rows_of(0, 20), 'wins')
    attempt(writer, 1, rows_of(1, 20), 'is lost')
    dataset.abort()
    dataset.abort()
    assert os.listdir(tmp_path / 'd') == []


@pytest.mark.usefixtures('own_stores')
@pytest.mark.parametrize('arrives', [False, True])
def test_an_index_whose_upload_seemed_to_fail_lists_no_deleted_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    class AnswersLate(ObjectStore):
        def put(self, key: str, source: Any, *, size: int) -> None:
            is_index = key == 'index.json' and self.url.endswith('/data')
            if arrives or not is_index:
                super().put(key, source, size=size)
            if is_index:
                raise StorageError('the answer was lost')

    monkeypatch.setattr(ObjectStore, 'objects', {})
    register_store('late', AnswersLate)
    dataset = PartedDataset((str(tmp_path / 'local'), 'late://bucket/data'), COLUMNS, OPTIONS)
    with pytest.raises(StorageError, match='the answer was lost'):
        run(dataset, SCHEDULE)
    with pytest.warns(UserWarning, match='the parts that it lists stay') if arrives else contextlib.nullcontext():
        dataset.abort()
    if not arrives:
        assert ObjectStore.objects['bucket'] == {}
        return
    for name, data in ObjectStore.objects['bucket'].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    root = tmp_path / 'data'
    assert {name for name in files_below(root) if not name.endswith('index.json')} == listed(root)
    assert samples(root) == [row for task, (count, _) in enumerate(SCHEDULE) for row in rows_of(task, count)]


def with_abort(dataset: PartedDataset) -> None:
    try:
        run(dataset, [(12, ['wins']), (5, ['finishes', 'wins'])])
    except BaseException:
        dataset.abort()
        raise


@pytest.mark.filterwarnings('ignore:The index of', 'ignore:Parts that do not count', 'ignore:Files of a writer')
@pytest.mark.parametrize(
    ('error', 'has_remote'),
    [
        (DISK, True),
        (STOP, False),
        pytest.param(DISK, False, marks=pytest.mark.slow),
        pytest.param(STOP, True, marks=pytest.mark.slow),
    ],
)
def test_any_call_fails(tmp_path: Path, has_remote: bool, error: BaseException) -> None:
    numbers = itertools.count()

    def made() -> tuple[PartedDataset, Path]:
        root, local = tmp_path / f'd-{next(numbers)}', tmp_path / f'd-{next(numbers)}'
        out: Any = (str(local), str(root)) if has_remote else str(root)
        return PartedDataset(out, COLUMNS, {**OPTIONS, 'retry': 0, 'keep_local': has_remote}), root

    dataset, root = made()
    calls = calls_of(lambda: with_abort(dataset), tmp_path / 'd-', error)
    expected = samples(root)
    for at in [*range(1, calls - 20, 19), *range(calls - 20, calls + 1, 2)]:
        dataset, root = made()
        outcome, _ = failing_calls.in_a_child(lambda each=dataset: with_abort(each), tmp_path / 'd-', at, error)
        if outcome == 'done' or (root / 'index.json').exists():
            assert samples(root) == expected, (at, outcome)


@pytest.mark.usefixtures('own_stores')
def test_the_dataset_of_another_writer_that_took_over_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore, 'objects', {})
    register_store('objects', ObjectStore)
    dataset = PartedDataset((str(tmp_path / 'local'), 'objects://bucket/data'), COLUMNS, OPTIONS)
    done = attempt(dataset.begin(), 0, rows_of(0, 20), 'wins')
    assert done is not None
    # As from another machine, whose locks cannot be seen.
    ObjectStore.objects['bucket'].clear()
    ObjectStore('objects://bucket/data').put('index.json', io.BytesIO(b'theirs'), size=6)
    with pytest.raises(StorageError, match='Another writer'):
        dataset.finish([done])
    dataset.abort()
    assert ObjectStore.objects['bucket'] == {'data/index.json': b'theirs'}


@pytest.mark.parametrize('has_remote', [False, True])
def test_after_a_killed_driver_the_next_one_starts_over(tmp_path: Path, has_remote: bool) -> None:
    root = tmp_path / 'd'
    out: Any = (str(tmp_path / 'local'), str(root)) if has_remote else str(root)
    pid = os.fork()
    if pid == 0:  # as killed by SIGKILL: no clean-up
        writer = PartedDataset(out, COLUMNS, OPTIONS).begin()
        attempt(writer, 0, rows_of(0, 20), 'wins')
        attempt(writer, 1, rows_of(1, 20), 'is lost')
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(files_below(root)) > 2

    expected = run(PartedDataset(out, COLUMNS, OPTIONS), SCHEDULE)
    assert samples(root) == expected
    assert len({name.partition('/')[0] for name in files_below(root)} - {'index.json'}) == 2


def test_files_of_others_are_refused_before_any_task(tmp_path: Path) -> None:
    (tmp_path / 'd').mkdir()
    (tmp_path / 'd' / 'thesis.txt').write_text('mine')
    with pytest.raises(FileExistsError, match=r'thesis\.txt'):
        PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS).begin()
    expected = run(PartedDataset(str(tmp_path / 'd'), COLUMNS, {**OPTIONS, 'exist_ok': True}), SCHEDULE)
    assert samples(tmp_path / 'd') == expected


def test_one_conversion_at_a_time(tmp_path: Path) -> None:
    PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS).begin()
    with pytest.raises(FileExistsError, match='another writer'):
        PartedDataset(str(tmp_path / 'd'), COLUMNS, {**OPTIONS, 'exist_ok': True}).begin()


def test_bad_samples(tmp_path: Path) -> None:
    rows = [*rows_of(0, 3), {'id': 3, 'text': None}, *rows_of(0, 5)[4:]]
    dataset = PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS)
    with pytest.raises(AttributeError, match=r"Sample 3, column 'text'") as caught:
        attempt(dataset.begin(), 7, rows, 'wins')
    dataset.abort()
    assert 'While writing part 7' in ''.join(getattr(caught.value, '__notes__', ['While writing part 7']))

    dataset = PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS, on_bad_sample='skip')
    done = attempt(dataset.begin(), 7, rows, 'wins')
    assert done is not None
    assert (done.samples, done.skipped) == (4, 1)
    with pytest.warns(UserWarning, match=r"Samples left out of .*: 1\..* Sample 3, column 'text'"):
        dataset.finish([done])
    assert [sample['id'] for sample in samples(tmp_path / 'd')] == [0, 1, 2, 4]


def test_no_samples(tmp_path: Path) -> None:
    dataset = PartedDataset(str(tmp_path / 'd'), COLUMNS, OPTIONS, on_bad_sample='skip')
    done = attempt(dataset.begin(), 0, [{'id': 'no', 'text': ''}], 'wins')
    assert done is not None
    with pytest.raises(
        ConfigError, match="without its 1 bad samples, the first of them because: Sample 0, column 'id'"
    ):
        dataset.finish([done])
    dataset.abort()
    assert os.listdir(tmp_path / 'd') == []


@pytest.mark.parametrize(
    ('out', 'columns', 'options', 'message'),
    [
        ('d', COLUMNS, {'min_workers': 2}, 'Invalid Writer argument'),
        ('d', {'id': 'integer'}, {}, 'integer'),
        ('d', COLUMNS, {'compression': 'lzma'}, 'is not a supported compression'),
        ('', COLUMNS, {}, '`out` must be a folder'),
        (('d', ''), COLUMNS, {}, '`out` must be a folder'),
    ],
)
def test_wrong_arguments(out: Any, columns: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PartedDataset(out, columns, options)
