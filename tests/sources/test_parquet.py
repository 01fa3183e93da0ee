"""Parquet files as a source."""

from __future__ import annotations

import datetime as dt
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StreamingDataset
from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import parquet
from headrace.sources.source_index import unpack_part
from tests.support.sources.parquet_files import as_python, index, read, table, write
from tests.support.suite.example_counts import scaled

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


@pytest.mark.parametrize(
    'options', [{}, {'compression': 'zstd', 'use_dictionary': False}, {'data_page_version': '2.0'}]
)
def test_rows_come_from_the_ranges_in_order(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path / 'a.parquet', 60, **options)
    write(tmp_path / 'b/c.parquet', 0, **options)
    write(tmp_path / 'd.parquet', 10, first=60, **options)
    (tmp_path / '_metadata').write_bytes(b'of another program')
    source = index(tmp_path)
    assert [(part.key, part.rows) for part in source.parts] == [
        ('a.parquet', 25),
        ('a.parquet', 25),
        ('a.parquet', 10),
        ('d.parquet', 10),
    ]
    assert source.columns == {
        'id': 'int64',
        'text': 'str',
        'tokens': 'ndarray:int32',
        'filler': 'bytes',
        'label': 'json',
        'deep': 'json',
    }
    assert as_python(read(tmp_path, parquet.load(source.to_bytes()))) == table(70).to_pylist()


def test_only_the_bytes_of_the_columns_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, 'GAP', 100)
    write(tmp_path / 'a.parquet', 500, row_group_size=500)
    whole, some = index(tmp_path), index(tmp_path, ['label', 'id'])
    assert some.columns == {'id': 'int64', 'label': 'json'}
    assert as_python(read(tmp_path, some)) == table(500).select(['id', 'label']).to_pylist()
    assert len(some.parts[0].ranges) == 2
    assert sum(size for _, size in some.parts[0].ranges) < sum(size for _, size in whole.parts[0].ranges) / 5
    with pytest.raises(StreamError, match="asks for 'lable'.*Did you mean 'label'"):
        index(tmp_path, ['lable'])


def test_files_with_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({'id': [1], 'x': ['a']}), tmp_path / 'a.parquet')
    pq.write_table(pa.table({'id': [1], 'x': [1.0]}), tmp_path / 'b.parquet')
    with pytest.raises(FormatError, match=r"'x' is `str` in .*a.parquet, and `float64` in .*b.parquet.*\['id'\]"):
        index(tmp_path)
    assert index(tmp_path, ['id']).columns == {'id': 'int64'}


def test_columns_in_another_order_are_the_same(tmp_path: Path) -> None:
    pq.write_table(pa.table({'id': [1], 'x': ['a']}), tmp_path / 'a.parquet')
    pq.write_table(pa.table({'x': ['b'], 'id': [2]}), tmp_path / 'b.parquet')
    assert as_python(read(tmp_path, index(tmp_path))) == [{'id': 1, 'x': 'a'}, {'id': 2, 'x': 'b'}]


def test_types_of_a_file_without_rows_do_not_count(tmp_path: Path) -> None:
    pq.write_table(pa.table({'a': pa.array([], pa.null()), 'b': []}), tmp_path / '0.parquet')
    pq.write_table(pa.table({'a': ['x']}), tmp_path / '1.parquet')
    for columns in (None, ['a']):
        source = index(tmp_path, columns)
        assert source.columns == {'a': 'str'}
        assert read(tmp_path, source) == [{'a': 'x'}]


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        (pa.timestamp('ms', 'UTC'), pa.timestamp('us', 'UTC')),
        (pa.timestamp('us', 'UTC'), pa.timestamp('us')),
        (pa.timestamp('us'), pa.duration('us')),
    ],
)
def test_files_with_other_units_of_time_are_refused(tmp_path: Path, one: Any, other: Any) -> None:
    for number, kind in enumerate([one, other]):
        times = pa.array([[1000]], pa.list_(kind))
        pq.write_table(pa.table({'a': [1], 'at': times}), tmp_path / f'{number}.parquet')
    assert index(tmp_path, ['a']).columns == {'a': 'int64'}
    kinds = rf"'at' is `json of {re.escape(str(one))}` .*0.parquet, and `json of {re.escape(str(other))}`"
    with pytest.raises(FormatError, match=rf"{kinds} .*columns=\['a'\]"):
        index(tmp_path)


@pytest.mark.parametrize('rows', [60, 0])
@pytest.mark.parametrize('options', [{}, {'write_page_index': True}])
def test_joined_files_are_refused(tmp_path: Path, rows: int, options: dict[str, Any]) -> None:
    one = write(tmp_path / 'a.parquet', 60, **options).read_bytes()
    (tmp_path / 'b.parquet').write_bytes(one + write(tmp_path / 'b.parquet', rows, **options).read_bytes())
    with pytest.raises(FormatError, match=rf'b.parquet holds several Parquet files, .* begins at byte {len(one)},'):
        index(tmp_path)


@pytest.mark.parametrize('nested', [False, True])
@pytest.mark.parametrize('year', [1600, 9999])
def test_times_that_int64_of_ns_cannot_hold_are_refused(tmp_path: Path, year: int, nested: bool) -> None:
    days = [dt.datetime(2020, 1, 1), dt.datetime(1678, 1, 1), dt.datetime(2261, 12, 31)]

    def write_days(days: list[dt.datetime]) -> None:
        kind = pa.list_(pa.struct([('at', pa.timestamp('us'))])) if nested else pa.timestamp('us')
        values = pa.array([[{'at': day}] for day in days] if nested else days, kind)
        pq.write_table(pa.table({'day': values}), tmp_path / 'a.parquet', use_deprecated_int96_timestamps=True)

    write_days(days)
    found = [row['day'] for row in read(tmp_path, index(tmp_path))]
    right = [(day - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * 1000 for day in days]
    assert ([row[0]['at'] for row in found] if nested else found) == right
    write_days([*days, dt.datetime(year, 12, 31)])
    with pytest.raises(
        ShardError, match=r"row 3 of column 'day' of .*a.parquet, row group 0, is another: .*again in us"
    ):
        read(tmp_path, index(tmp_path))


def test_files_with_bools_and_with_bytes_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({'a': [[True]]}), tmp_path / '0.parquet')
    assert index(tmp_path).columns == {'a': 'ndarray:uint8'}
    pq.write_table(pa.table({'a': pa.array([[7]], pa.list_(pa.uint8()))}), tmp_path / '1.parquet')
    with pytest.raises(FormatError, match=r'`ndarray:uint8 of bool` .*0.parquet, and `ndarray:uint8`'):
        index(tmp_path)


def test_names_too_long_for_the_cache_are_refused_when_the_stream_is_opened(tmp_path: Path) -> None:
    data = tmp_path / 'data'
    (data / ('d' * 200)).mkdir(parents=True)
    name = 'x' * (255 - len('.parquet.0.part')) + '.parquet'
    pq.write_table(pa.table({'a': [1]}), data / ('d' * 200) / name)
    assert StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'), batch_size=1)[0]['a'] == 1
    (data / ('d' * 200) / name).rename(data / f'x{name}')
    with pytest.raises(FormatError, match='at most 255 bytes, but xx.* has 256'):
        StreamingDataset(remote=str(data), local=str(tmp_path / 'other'), batch_size=1)


def test_nulls_of_any_file_make_the_column_json(tmp_path: Path) -> None:
    pq.write_table(pa.table({'x': ['a']}), tmp_path / 'a.parquet')
    pq.write_table(pa.table({'x': pa.array([None], pa.string())}), tmp_path / 'b.parquet')
    source = index(tmp_path)
    assert source.columns == {'x': 'json'}
    assert read(tmp_path, source) == [{'x': 'a'}, {'x': None}]


def test_a_null_without_statistics_is_an_error_with_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({'x': ['a', None]}), tmp_path / 'a.parquet', write_statistics=False)
    with pytest.raises(FormatError, match=r"Row 1 of column 'x' of .*a.parquet, row group 0"):
        read(tmp_path, index(tmp_path))


def test_paths_of_images_may_be_null(tmp_path: Path) -> None:
    files = pa.array([{'bytes': b'x', 'path': None}], pa.struct([('bytes', pa.binary()), ('path', pa.string())]))
    pq.write_table(pa.table({'image': files}), tmp_path / 'a.parquet')
    source = index(tmp_path)
    assert (source.columns, read(tmp_path, source)) == ({'image': 'bytes'}, [{'image': b'x'}])


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'a.parquet'
    for content, message in [
        (b'', 'ends with the bytes PAR1'),
        (b'x' * 100, 'ends with the bytes PAR1'),
        (b'PAR1' + b'x' * 50 + b'PARE', 'encrypted'),
        (b'PAR1' + b'x' * 50 + (51).to_bytes(4, 'little') + b'PAR1', 'announces 51 bytes'),
        (b'PAR1' + b'x' * 50 + (40).to_bytes(4, 'little') + b'PAR1', 'cannot be read'),
    ]:
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            index(tmp_path)


def test_a_delta_table_is_refused(tmp_path: Path) -> None:
    write(tmp_path / 'a.parquet', 1)
    (tmp_path / '_delta_log').mkdir()
    (tmp_path / '_delta_log/0.json').write_text('{}')
    with pytest.raises(FormatError, match='This is a table .*_delta_log/0.json'):
        index(tmp_path)


def test_a_row_group_that_no_shard_can_hold_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs of equal numbers take few bytes however many they are.
    pq.write_table(pa.table({'x': pa.repeat(7, 1 << 20)}), tmp_path / 'a.parquet', row_group_size=1 << 20)
    assert (tmp_path / 'a.parquet').stat().st_size < 10_000
    assert index(tmp_path).parts[0].size > 12 << 20
    monkeypatch.setattr(parquet, 'LARGEST', 12 << 20)
    with pytest.raises(FormatError, match='Row group 0 of a.parquet has 1048576 rows of 12 bytes and more'):
        index(tmp_path)


@pytest.fixture(scope='module')
def good() -> bytes:
    out = io.BytesIO()
    pq.write_table(table(40), out, row_group_size=25)
    return out.getvalue()


@given(data=st.data())
@settings(max_examples=scaled(80), print_blob=False)
def test_damaged_files_raise_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, good: bytes, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / 'damaged'
    folder.mkdir(exist_ok=True)
    content = bytearray(good)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], 'little')
    for _ in range(data.draw(st.integers(1, 4))):
        # As often in the footer as in the pages.
        at = data.draw(st.integers(0, footer - 1) | st.integers(footer, len(good) - 1))
        content[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(good) - 1)) : data.draw(st.integers(0, len(good)))]
    (folder / 'a.parquet').write_bytes(content)
    try:
        source = index(folder)
        for number, part in enumerate(source.parts):
            packed = folder / 'packed'
            packed.write_bytes(b''.join(content[offset : offset + size] for offset, size in part.ranges))
            unpack_part(source, number, packed, folder / 'raw')
    except HeadraceError:
        pass


@given(data=st.data())
@settings(max_examples=scaled(50))
def test_a_damaged_index_is_an_error(
    good: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / 'index'
    folder.mkdir(exist_ok=True)
    (folder / 'a.parquet').write_bytes(good)
    packed = bytearray(index(folder).to_bytes())
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        parquet.load(bytes(packed))
