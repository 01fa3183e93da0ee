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
from headrace.errors import FormatError, StreamError
from headrace.sources import parquet
from headrace.sources.parquet import index_files
from headrace.sources.table_files import TableFiles
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
        schema=new.append(field('day', pa.date32(), 6)).append(field('none', pa.int8(), 7)),
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
