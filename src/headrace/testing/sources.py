"""The contract of formats that are read without conversion, as tests to inherit.

A test class inherits `SourceContract` and gives it a fixture ``case``. Import the module that registers the format.
"""

from __future__ import annotations

import contextlib
import io
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.errors import HeadraceError, StreamError
from headrace.format import MDSEncoder, open_shard
from headrace.sources.formats import format_of
from headrace.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.sources.protocol import Source
    from headrace.storage import Store

__all__ = ['SourceCase', 'SourceContract']

_DAMAGES = 40
"""Damaged copies of each object."""
_MEMORY = 64 << 20
"""Bytes that a damaged copy of a small object may take."""


@dataclass(frozen=True)
class SourceCase:
    """A small dataset of a format, and its rows."""

    format: str
    """Its `NAME`."""
    objects: Mapping[str, bytes]
    """Content of each object, by key: at least two objects with rows, and less than 1 MB in all."""
    rows: Sequence[Mapping[str, Any]]
    """All rows in their order, at least ten. Some have nulls, if the format has any."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The format's options."""


class SourceContract:
    """Tests of the `SourceFormat` and `Source` protocols."""

    def is_same(self, value: Any, back: Any) -> bool:
        """Whether a value came back unchanged; override it for values that `==` does not compare."""
        if isinstance(value, np.ndarray) or isinstance(back, np.ndarray):
            return bool(np.array_equal(value, back))
        return bool(value == back)

    def index(self, case: SourceCase, store: Store, columns: Sequence[str] | None = None) -> Source:
        """Index the objects of a store."""
        source_format = format_of(case.format)
        objects = source_format.find(list(store.list('')))
        return source_format.index(store, objects, columns=columns, allow_unsafe_types=False, **case.options)

    def read(self, source: Source, store: Store, part: int) -> list[dict[str, Any]]:
        """The rows of a part, as its shard stores them."""
        rows: list[dict[str, Any]] = []
        for batch in source.batches(part, memoryview(_bytes_of(source, store, part))):
            assert set(batch) == set(source.columns)
            assert len({len(values) for values in batch.values()}) == 1
            encoder = MDSEncoder(source.columns, size_limit=None, check_bytes=False)
            for shard in (*encoder.add_batch(batch), *encoder.finish()):
                reader = open_shard(shard.info, [memoryview(shard.files[0][1])], source='test')
                rows += [reader.sample(row) for row in range(shard.info.samples)]
        return rows

    def check(self, found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
        """Compare rows."""
        assert len(found) == len(expected)
        for row, other in zip(found, expected, strict=True):
            assert set(row) == set(other)
            for name in row:
                assert self.is_same(other[name], row[name]), (name, other[name], row[name])

    @pytest.fixture
    def store(self, case: SourceCase, tmp_path: Path) -> Store:
        """The case in a folder."""
        return _written(tmp_path / 'data', case.objects)

    def test_the_format_finds_its_objects_only(self, case: SourceCase, store: Store) -> None:
        source_format = format_of(case.format)
        assert case.format == source_format.NAME
        assert {info.key for info in source_format.find(list(store.list('')))} <= set(case.objects)
        assert not source_format.find([])

    def test_parts_lie_within_their_objects(self, case: SourceCase, store: Store) -> None:
        source = self.index(case, store)
        sizes = {info.key: info.size for info in store.list('')}
        assert sum(part.rows for part in source.parts) == len(case.rows)
        assert len({part.key for part in source.parts}) > 1, 'the case has several objects'
        for part in source.parts:
            assert part.rows > 0
            ends = [0]
            for offset, size in part.ranges:
                assert ends[-1] <= offset < offset + size <= sizes[part.key]
                ends.append(offset + size)
            for key, offset, size in part.beside:
                assert 0 <= offset <= offset + size <= sizes[key]

    def test_each_part_is_read_alone_and_in_any_order(self, case: SourceCase, store: Store) -> None:
        source = self.index(case, store)
        numbers = list(range(len(source.parts)))
        random.Random(0).shuffle(numbers)
        by_part = {number: self.read(source, store, number) for number in numbers}
        assert [len(by_part[number]) for number in sorted(by_part)] == [part.rows for part in source.parts]
        self.check([row for number in sorted(by_part) for row in by_part[number]], case.rows)

    def test_columns_are_chosen(self, case: SourceCase, store: Store) -> None:
        source = self.index(case, store)
        for name in source.columns:
            chosen = self.index(case, store, [name])
            assert list(chosen.columns) == [name]
            rows = [row for part in range(len(chosen.parts)) for row in self.read(chosen, store, part)]
            self.check(rows, [{name: row[name]} for row in case.rows])
        with pytest.raises(StreamError, match='no such column'):
            self.index(case, store, ['no such column'])

    def test_a_source_is_kept_as_bytes(self, case: SourceCase, store: Store) -> None:
        source = self.index(case, store)
        again = format_of(case.format).load(source.to_bytes())
        assert (again.format, dict(again.columns), list(again.parts)) == (
            source.format,
            dict(source.columns),
            list(source.parts),
        )
        assert dict(again.meanings) == dict(source.meanings)
        assert getattr(again, 'identity', None) == getattr(source, 'identity', None)
        self.check(self.read(again, store, 0), case.rows[: source.parts[0].rows])

    def test_damaged_objects_raise_our_errors_in_bounded_memory(self, case: SourceCase, tmp_path: Path) -> None:
        random_ = random.Random(1)
        for key, content in case.objects.items():
            for number in range(_DAMAGES):
                objects = {**case.objects, key: _damaged(content, random_)}
                store = _written(tmp_path / f'{len(key)}-{number}', objects)
                before = _memory(peak=False)
                with contextlib.suppress(HeadraceError):
                    source = self.index(case, store)
                    for part in range(len(source.parts)):
                        _exhaust(source, part, _bytes_of(source, store, part))
                taken = _memory(peak=True) - before
                assert taken < _MEMORY, f'{key}, damaged, took {taken} bytes'

    def test_bytes_of_a_part_that_were_damaged_later_raise_our_errors(self, case: SourceCase, store: Store) -> None:
        source, random_ = self.index(case, store), random.Random(2)
        for part in range(len(source.parts)):
            data = _bytes_of(source, store, part)
            for _ in range(_DAMAGES):
                with contextlib.suppress(HeadraceError):
                    _exhaust(source, part, _damaged(data, random_))

    def test_a_changed_object_is_read_again(self, case: SourceCase, store: Store, tmp_path: Path) -> None:
        where = {'remote': str(tmp_path / 'data'), 'local': str(tmp_path / 'cache'), 'batch_size': 1}
        how: dict[str, Any] = {'format': case.format, 'format_options': case.options, **where}
        self.check(list(StreamingDataset(**how)), case.rows)
        key = self.index(case, store).parts[0].key
        (tmp_path / 'data' / key).unlink()
        try:
            samples = list(StreamingDataset(**how))
        except HeadraceError:
            return  # an index of its own names the object
        assert len(samples) < len(case.rows)

    @pytest.mark.parametrize('method', ['fork', 'spawn'])
    def test_workers_read_it(self, case: SourceCase, store: Store, tmp_path: Path, method: str) -> None:
        del store
        dataset = StreamingDataset(
            remote=str(tmp_path / 'data'),
            local=str(tmp_path / 'cache'),
            format=case.format,
            format_options=case.options,
            batch_size=4,
        )
        first = dataset[0]  # this process has used the format's library before it forks
        workers = 2 if method == 'fork' else 1
        loader = StreamingDataLoader(dataset, num_workers=workers, multiprocessing_context=method, collate_fn=list)
        samples = [sample for batch in loader for sample in batch]
        self.check(samples, case.rows)
        self.check([first, dataset[len(case.rows) - 1]], [case.rows[0], case.rows[-1]])


def _written(folder: Path, objects: Mapping[str, bytes]) -> Store:
    for key, content in objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return open_store(str(folder))


def _bytes_of(source: Source, store: Store, part: int) -> bytes:
    """The bytes that `Source.batches` takes."""
    described = source.parts[part]
    spans = [*described.beside, *((described.key, offset, size) for offset, size in described.ranges)]
    if not described.ranges:
        spans.append((described.key, 0, store.head(described.key).size))
    return b''.join(_read(store, key, offset, size) for key, offset, size in spans)


def _memory(*, peak: bool) -> int:
    """Bytes of this process: now, or the most since the last call; 0 where the system does not say.

    It is the system's figure: with `tracemalloc` a thread that a format starts may wait for ever.
    """
    try:
        if not peak:
            Path('/proc/self/clear_refs').write_text('5')
        status = Path('/proc/self/status').read_text()
    except OSError:
        return 0
    return int(status.partition('VmHWM:' if peak else 'VmRSS:')[2].split()[0]) << 10


def _exhaust(source: Source, part: int, data: bytes) -> None:
    for _ in source.batches(part, memoryview(data)):
        pass


def _read(store: Store, key: str, offset: int, size: int) -> bytes:
    out = io.BytesIO()
    store.get(key, out, offset=offset, size=size)
    return out.getvalue()


def _damaged(content: bytes, random_: random.Random) -> bytes:
    """A copy with other bytes in one place, or without its end or a piece."""
    at = random_.randrange(len(content))
    size = random_.choice((1, 1, 4, 8))
    return random_.choice(
        (
            content[:at],
            content[:at] + content[at + size :],
            content[:at] + random_.randbytes(size) + content[at + size :],
            content[:at] + b'\xff' * size + content[at + size :],
        )
    )
