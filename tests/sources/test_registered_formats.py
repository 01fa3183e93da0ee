"""Formats that programs register, their options, and parts of several objects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import Stream, StreamingDataset
from headrace.config.load import load_config
from headrace.errors import ConfigError, ConversionError, FormatError, ShardError, StreamError
from headrace.sources import Part, Source, register_format
from headrace.sources.formats import known_formats
from headrace.sources.source_bytes import dump_index, load_index
from headrace.storage import ObjectInfo, Store
from tests.support.sources.converted import convert


class Numbers:
    """Numbers of one byte in `.u8`, and the count of each row in `.counts` beside it."""

    NAME = 'numbers'

    def find(self, objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        return [info for info in objects if info.key.endswith(('.u8', '.counts'))]

    def index(
        self,
        store: Store,
        objects: Sequence[ObjectInfo],
        *,
        columns: Collection[str] | None,
        allow_unsafe_types: bool,
        add: int = 0,
    ) -> Source:
        del store, columns, allow_unsafe_types
        sizes = {info.key: info.size for info in objects}
        counts = {key: key.replace('.u8', '.counts') for key in sizes if key.endswith('.u8')}
        parts = [
            Part(key, ((0, sizes[key]),), sizes[beside], 100, ((beside, 0, sizes[beside]),))
            for key, beside in counts.items()
        ]
        return NumbersSource(parts, add)

    def load(self, data: bytes) -> Source:
        _, parts, more = load_index(self.NAME, data)
        return NumbersSource(parts, more['add'])


class NumbersSource:
    format = Numbers.NAME
    columns: Mapping[str, str] = {'numbers': 'ndarray:int64'}
    dropped: Sequence[str] = ()
    meanings: Mapping[str, str] = {}

    def __init__(self, parts: Sequence[Part], add: int) -> None:
        self.parts, self.add = parts, add

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any]]]:
        rows = self.parts[part].rows
        ends = np.cumsum(np.frombuffer(data[:rows], np.uint8))
        yield {'numbers': np.split(np.frombuffer(data[rows:], np.uint8) + np.int64(self.add), ends[:-1])}

    def to_bytes(self) -> bytes:
        return dump_index(self.format, self.columns, self.parts, {'add': self.add})


NUMBERS = Numbers()
register_format(NUMBERS)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / 'data'
    folder.mkdir()
    for number in range(2):
        (folder / f'{number}.u8').write_bytes(bytes(range(10 * number, 10 * number + 6)))
        (folder / f'{number}.counts').write_bytes(bytes([1, 2, 3]))
    return folder


ROWS = [[0], [1, 2], [3, 4, 5], [10], [11, 12], [13, 14, 15]]


def read(folder: Path, cache: Path, **how: Any) -> list[list[int]]:
    return [
        sample['numbers'].tolist()
        for sample in StreamingDataset(remote=str(folder), local=str(cache), batch_size=1, **how)
    ]


def test_a_registered_format_is_found_and_read(data: Path, tmp_path: Path) -> None:
    assert read(data, tmp_path / 'cache') == ROWS
    assert read(data, tmp_path / 'cache') == ROWS  # from the cached index


def test_options_make_other_shards_in_one_folder(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / 'cache'
    more = [[number + 100 for number in row] for row in ROWS]
    for _ in range(2):
        assert read(data, cache) == ROWS
        assert read(data, cache, format='numbers', format_options={'add': 100}) == more


def test_options_are_part_of_the_data(data: Path, tmp_path: Path) -> None:
    plain, added = (
        StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'), format='numbers', format_options=options)
        for options in ({}, {'add': 1})
    )
    assert plain.streams[0].fingerprint != added.streams[0].fingerprint
    default = StreamingDataset(
        remote=str(data), local=str(tmp_path / 'cache'), format='numbers', format_options={'add': 0}
    )
    assert default.streams[0].fingerprint == plain.streams[0].fingerprint


def test_an_object_beside_a_part_that_changes_makes_the_shard_anew(data: Path, tmp_path: Path) -> None:
    assert read(data, tmp_path / 'cache') == ROWS
    (data / '1.counts').write_bytes(bytes([3, 2, 1]))
    assert read(data, tmp_path / 'cache') == [*ROWS[:3], [10, 11, 12], [13, 14], [15]]


def test_a_conversion_takes_options(data: Path, tmp_path: Path) -> None:
    convert(data, tmp_path / 'out', format='numbers', format_options={'add': 1})
    found = [sample['numbers'].tolist() for sample in StreamingDataset(local=str(tmp_path / 'out'), batch_size=1)]
    assert found == [[number + 1 for number in row] for row in ROWS]
    with pytest.raises(ConfigError, match='`format_options` of convert are for a path or URL'):
        convert([{'a': 1}], tmp_path / 'other', format_options={'add': 1})


def test_yaml_knows_registered_formats(tmp_path: Path) -> None:
    path = tmp_path / 'data.yaml'
    stream = '{remote: /x, local: /y, format: numbers, format_options: {add: 3}}'
    path.write_text(f'global_batch_size: 2\ntrain: {{streams: {{a: {stream}}}}}\n')
    train = load_config(path).train
    assert train is not None
    (stream,) = train.streams
    assert (stream.format, stream.format_options) == ('numbers', {'add': 3})


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ({'format_options': {'add': 1}}, 'those of a named `format`, but it is None'),
        ({'format': 'mds', 'format_options': {'add': 1}}, "but it is 'mds'"),
        ({'format': 'numbers', 'format_options': {'ad': 1}}, "has 'ad', but the format numbers takes add"),
        ({'format': 'parquet', 'format_options': {'add': 1}}, "has 'add', but the format parquet takes none"),
        ({'format': 'numbers', 'format_options': {'add': b''}}, 'values that JSON can express'),
        ({'format': 'numbers', 'format_options': [1]}, 'is a mapping'),
        ({'format': 'number'}, "is one of mds, .*numbers, but is 'number'"),
    ],
)
def test_options_and_names_are_checked(how: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        Stream(remote='/x', local='/y', **how)


def test_names_are_unique() -> None:
    register_format(NUMBERS)
    assert known_formats().count('numbers') == 1
    for name in ('numbers', 'parquet', 'mds', 'A b'):
        with pytest.raises(ConfigError, match='The name of a format|is taken'):
            register_format(type('Other', (Numbers,), {'NAME': name})())


def test_an_index_of_an_unknown_format_names_the_fix(data: Path, tmp_path: Path) -> None:
    from headrace.sources.formats import format_of

    with pytest.raises(FormatError, match='Import the module that registers it'):
        format_of('unknown')


@pytest.mark.parametrize(
    'kind', [ValueError, KeyError, type('PanicException', (BaseException,), {'__module__': 'pyo3_runtime'})]
)
def test_errors_of_a_library_name_the_data(data: Path, tmp_path: Path, kind: type[BaseException]) -> None:
    class Failing(Numbers):
        NAME = f'failing_{kind.__name__.lower()}'

        def index(self, *_: Any, **__: Any) -> Source:
            raise kind('what the library says')

    register_format(Failing())
    with pytest.raises(FormatError, match='what the library says'):
        StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'), batch_size=1, format=Failing.NAME)


@pytest.mark.parametrize(
    'kind', [KeyError, RuntimeError, OSError, type('PanicException', (BaseException,), {'__module__': 'pyo3_runtime'})]
)
def test_errors_of_a_library_in_a_row_name_it(data: Path, tmp_path: Path, kind: type[BaseException]) -> None:
    class Failing(NumbersSource):
        format = f'failing_in_rows_{kind.__name__.lower()}'

        def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any]]]:
            (batch,) = super().batches(part, data)
            yield {'numbers': batch['numbers'][:2]}
            raise kind('what the library says')

    class FailingFormat(Numbers):
        NAME = Failing.format

        def index(self, *args: Any, **how: Any) -> Source:
            return Failing(super().index(*args, **how).parts, 0)

        def load(self, data: bytes) -> Source:
            return Failing(super().load(data).parts, 0)

    register_format(FailingFormat())
    where = {'remote': str(data), 'local': str(tmp_path / 'cache'), 'format': Failing.format}
    dataset = StreamingDataset(**where, batch_size=1, download_retry=0)
    message = r'0\.u8, cannot be read from its row 2 on: .*what the library says'
    with pytest.raises(ShardError, match=message):
        dataset[0]
    with pytest.raises((ShardError, ConversionError), match=message):
        convert(str(data), str(tmp_path / 'out'), format=Failing.format)
