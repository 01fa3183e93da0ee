"""Hive's folders, and what Delta and Iceberg say of Parquet files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Stream, StreamingDataset
from headrace.convert import convert
from headrace.errors import FormatError, ShardError, StreamError
from headrace.sources import parquet
from headrace.sources.parquet import index_files
from headrace.sources.table_files import BY_ID, TableFiles
from headrace.storage import open_store
from tests.support.sources.parquet_files import as_python, index, read
from tests.support.suite.example_counts import scaled

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')

NULL = '__HIVE_DEFAULT_PARTITION__'


def write_rows(folder: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / 'a.parquet', **options)


texts = st.text(st.characters(exclude_categories=['Cs', 'Cc']), min_size=1, max_size=8)
values = st.one_of(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1).map(str), min_size=1, max_size=4, unique=True),
    st.lists(st.one_of(texts, st.sampled_from(['007', '1' * 30, '-0', '1e3'])), min_size=1, max_size=4, unique=True),
)


@given(values, st.booleans())
@settings(max_examples=scaled(40))
def test_keys_of_folders_are_columns(tmp_path_factory: Any, found: list[str], has_null: bool) -> None:
    folder = tmp_path_factory.mktemp('data')
    every: list[str | None] = [*found, *([None] if has_null else [])]
    for number, value in enumerate(every):
        name = NULL if value is None else quote(value, safe=" '()!*~").replace('.', '%2E')
        write_rows(folder / f'ke%20y={name}' / 'plain', [{'id': number}] * 2)
    source = index(folder)
    is_int = all(
        str(int(value)) == value if value.strip('-').isascii() and value.strip('-').isdigit() else False
        for value in found
    )
    is_int = is_int and all(-(1 << 63) <= int(value) < 1 << 63 for value in found)
    assert source.columns == {'id': 'int64', 'ke y': 'json' if has_null else 'int64' if is_int else 'str'}
    rows = read(folder, parquet.load(source.to_bytes()))
    right = {number: int(value) if is_int else value for number, value in enumerate(found)}
    assert sorted((row['id'], row['ke y']) for row in rows) == sorted(
        [(number, value) for number, value in right.items() for _ in range(2)] + [(len(found), None)] * 2 * has_null,
    )


def test_a_column_of_the_files_is_preferred_and_a_key_is_named_once(tmp_path: Path) -> None:
    write_rows(tmp_path / 'year=2024', [{'id': 1, 'year': 'MMXXIV'}])
    assert read(tmp_path, index(tmp_path)) == [{'id': 1, 'year': 'MMXXIV'}]
    write_rows(tmp_path / 'year=2025', [{'id': 2}])
    with pytest.raises(FormatError, match=r"'year' is `str` in .*2024/a.parquet, and `int64` in .*2025/a.parquet"):
        index(tmp_path)
    write_rows(tmp_path / 'n=1/n=2', [{'id': 2}])
    with pytest.raises(FormatError, match=r"n=1/n=2/a.parquet have the key 'n' twice"):
        index(tmp_path)


def test_keys_of_folders_are_chosen_filtered_and_converted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / 'data'
    for year in (2023, 2024):
        for lang in ('de', 'en'):
            write_rows(folder / f'year={year}' / f'lang={lang}', [{'id': n, 'text': f't{n}'} for n in range(5)])

    def dataset(**options: Any) -> StreamingDataset:
        stream = Stream(remote=str(folder), local=str(tmp_path / 'cache'), **options)
        return StreamingDataset(streams=[stream], batch_size=1, shuffle=False)

    found = [
        {name: getattr(value, 'item', lambda value=value: value)() for name, value in row.items()} for row in dataset()
    ]
    assert found == [
        {'id': n, 'text': f't{n}', 'year': year, 'lang': lang}
        for year in (2023, 2024)
        for lang in ('de', 'en')
        for n in range(5)
    ]
    assert [dict(row) for row in dataset(columns=['lang'], where={'year': 2024, 'lang': 'en'})] == [{'lang': 'en'}] * 5
    caplog.clear()
    caplog.set_level('INFO', logger='headrace')
    assert [set(row) for row in dataset(columns=['id', 'year'])] == [{'id', 'year'}] * 20
    assert 'Left out 2 columns: text, lang.' in caplog.text
    assert 'Folders name' not in caplog.text
    with pytest.raises(StreamError, match="asks for 'jear'.*Did you mean 'year'"):
        dataset(columns=['jear'])
    report = convert(str(folder), tmp_path / 'out', progress_bar=False)
    assert report.ledger.keys == ()
    assert list(StreamingDataset(local=str(tmp_path / 'out'), batch_size=1, shuffle=False)) == list(dataset())


def schema_of(*fields: tuple[str, Any, int]) -> Any:
    return pa.schema(
        [pa.field(name, kind, metadata={'PARQUET:field_id': str(number)}) for name, kind, number in fields]
    )


def field(name: str, kind: Any, number: int) -> Any:
    return pa.field(name, kind, metadata={'PARQUET:field_id': str(number)})


def test_columns_are_found_by_id_in_structs_lists_and_maps_too(tmp_path: Path) -> None:
    def kinds(names: list[str], number: Any, more: list[Any]) -> list[Any]:
        inner = pa.struct([field(names[0], number, 11), field(names[1], pa.string(), 12), *more])
        return [
            field('s', inner, 1),
            field('l', pa.list_(field('element', inner, 20)), 2),
            field('m', pa.map_(field('key', pa.string(), 30).with_nullable(False), field('value', inner, 31)), 3),
            field(names[2], number, 4),
            field(names[3], number, 5),
        ]

    rows = [None if n % 5 == 4 else {'a': n, 'b': None if n % 3 == 0 else str(n)} for n in range(40)]
    old = pa.schema(kinds(['a', 'b', 'x', 'y'], pa.int32(), []))
    data: dict[str, Any] = {
        's': rows,
        'l': [None if n == 7 else rows[n : n + n % 3] for n in range(40)],
        'm': [None if n == 9 else [('k', rows[n])] * (n % 2) for n in range(40)],
        'x': list(range(40)),
        'y': list(range(100, 140)),
    }
    (tmp_path / 'd').mkdir()
    pq.write_table(pa.table(data, schema=old), tmp_path / 'd/a.parquet', row_group_size=15)
    # The names of two pairs are exchanged, and a field is added.
    new = pa.schema(kinds(['b', 'a', 'y', 'x'], pa.int64(), [field('c', pa.date32(), 13)]))
    store = open_store(tmp_path / 'd')
    gone = np.array([0, 14, 15, *range(30, 40)])
    files = TableFiles(
        constants=pa.RecordBatch.from_pydict({'day': pa.array([dt.date(1970, 1, 3)])}),
        schema=new.append(field('day', pa.date32(), 6)).append(field('none', pa.int8(), 7)).with_metadata(BY_ID),
        deleted={0: gone},
        snapshot='version 3',
    )
    source = parquet.load(
        index_files(store, list(store.list('')), columns=None, table=files, format_name='delta').to_bytes()
    )
    assert (source.format, source.snapshot) == ('delta', 'version 3')
    assert [part.rows for part in source.parts] == [13, 14]

    def renamed(row: Any) -> Any:
        return None if row is None else {'b': row['a'], 'a': row['b'], 'c': None}

    kept = [n for n in range(40) if n not in gone]
    right = [
        {
            's': renamed(rows[n]),
            'l': None if data['l'][n] is None else [renamed(row) for row in data['l'][n]],
            'm': None if data['m'][n] is None else {key: renamed(row) for key, row in data['m'][n]},
            'y': n,
            'x': 100 + n,
            'day': 2,
            'none': None,
        }
        for n in kept
    ]
    assert as_python(read(tmp_path / 'd', source)) == right
    only = index_files(store, list(store.list('')), columns=['day', 'none'], table=files)
    assert [part.ranges[0][1] < 500 for part in only.parts] == [True, True]
    assert as_python(read(tmp_path / 'd', only)) == [{'day': 2, 'none': None}] * len(kept)
    for wrong in ([40], [-1, 3]):
        with pytest.raises(FormatError, match='has 40 rows, but its table deletes row'):
            table = TableFiles(constants=files.constants, schema=new, deleted={0: np.array(wrong)})
            index_files(store, list(store.list('')), columns=None, table=table)


@pytest.mark.parametrize('numbers', [(0, 0), (2, 1)])
def test_ids_of_files_without_a_table_mean_nothing(tmp_path: Path, numbers: tuple[int, int]) -> None:
    inner = pa.struct([field('u', pa.int64(), numbers[0]), field('v', pa.int64(), numbers[1])])
    kinds = [field('a', pa.int64(), numbers[0]), field('b', pa.int64(), numbers[1]), field('s', inner, 0)]
    data = [{'a': n, 'b': 10 + n, 's': {'u': n, 'v': 20 + n}} for n in range(3)]
    for folder in (tmp_path / 'plain', tmp_path / 'hive/year=1'):
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(data, schema=pa.schema(kinds)), folder / 'a.parquet')
    assert as_python(read(tmp_path / 'plain', index(tmp_path / 'plain'))) == data
    assert as_python(read(tmp_path / 'hive', index(tmp_path / 'hive'))) == [{**row, 'year': 1} for row in data]
    found = index(tmp_path / 'hive', columns=['a'])
    assert as_python(read(tmp_path / 'hive', found)) == [{'a': row['a']} for row in data]


def test_a_folder_of_hive_may_have_a_key_that_begins_as_hidden_names_do(tmp_path: Path) -> None:
    for name in ('_date=1', '.date=2', '_date=3/_other', '_old'):
        write_rows(tmp_path / name, [{'id': 1}])
    write_rows(tmp_path / 'x=1', [{'id': 1}])
    (tmp_path / 'x=1/a.parquet').rename(tmp_path / 'x=1/_a=1.parquet')
    found = parquet.find(list(open_store(tmp_path).list('')))
    assert {info.key for info in found} == {'_date=1/a.parquet', '.date=2/a.parquet'}


@pytest.mark.parametrize(
    ('own', 'kind', 'is_read'),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int32(), pa.float64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.large_string(), pa.string(), True),
        (pa.timestamp('ns'), pa.timestamp('us', 'UTC'), True),
        (pa.decimal128(22, 2), pa.decimal128(25, 2), True),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int32(), 1), pa.list_(pa.int32()), True),
        (pa.float64(), pa.float32(), False),
        (pa.float64(), pa.int64(), False),
        (pa.string(), pa.int64(), False),
        (pa.timestamp('us'), pa.int64(), False),
        (pa.list_(pa.float64()), pa.list_(pa.float32()), False),
        (pa.bool_(), pa.int32(), False),
    ],
)
def test_a_file_of_another_type_is_widened_or_refused(tmp_path: Path, own: Any, kind: Any, is_read: bool) -> None:
    (tmp_path / 'd').mkdir()
    values = pa.array([[0]], own) if pa.types.is_nested(own) else pa.array([0]).cast(own)
    pq.write_table(pa.table({'a': values}), tmp_path / 'd/a.parquet')
    store = open_store(tmp_path / 'd')
    table = TableFiles(constants=pa.RecordBatch.from_pydict({'': pa.nulls(1)}), schema=pa.schema([('a', kind)]))
    source = index_files(store, list(store.list('')), columns=None, table=table)
    if is_read:
        assert len(read(tmp_path / 'd', source)) == 1
    else:
        with pytest.raises(ShardError, match='it is .*, and .* in the table'):
            read(tmp_path / 'd', source)


def test_marks_do_not_depend_on_the_order_of_metadata() -> None:
    def marks(about: dict[str, str], **changed: str) -> dict[str, str]:
        inner = pa.struct([pa.field('b', pa.int64(), metadata={**about, **changed})])
        schema = pa.schema([pa.field('a', pa.list_(pa.field('element', inner)), metadata=about)])
        return TableFiles(constants=pa.RecordBatch.from_pydict({'p': [1]}), schema=schema).marks(['one'])

    about = {'delta.columnMapping.id': '1', 'delta.columnMapping.physicalName': 'x', 'comment': 'c'}
    assert marks(about) == marks(dict(reversed(about.items())))
    assert marks(about) != marks(about, **{'delta.columnMapping.physicalName': 'y'})


def test_marks_tell_of_deleted_rows_and_values() -> None:
    def marks(deleted: list[int], value: int, name: str = 'a') -> dict[str, str]:
        constants = pa.RecordBatch.from_pydict({'p': pa.array([value, 0])})
        table = TableFiles(
            constants=constants, schema=pa.schema([(name, pa.int64())]), deleted={0: np.array(deleted, np.int64)}
        )
        return table.marks(['one', 'two'])

    one = marks([1], 5)
    assert one == marks([1], 5)
    for other in (marks([2], 5), marks([1], 6)):
        assert (other['one'] != one['one'], other['two']) == (True, one['two'])
    assert marks([1], 5, 'b')['two'] != one['two']
