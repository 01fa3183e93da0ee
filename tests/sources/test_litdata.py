"""litdata's chunks, written by litdata itself and read value by value."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import litdata as source_format
from tests.support.sources.litdata_folders import read, tensors, write
from tests.support.sources.source_cases import MemoryStore, index, part_bytes, rows
from tests.support.suite.example_counts import scaled

FROZEN = Path(__file__).parents[1] / 'data' / 'litdata'


def test_numbers_and_text(tmp_path):
    samples = [{'i': n - 3, 's': f'ä{n}', 'f': n / 3, 'b': bytes([n]), 'ok': n % 2 == 0} for n in range(10)]
    objects = write(tmp_path, samples)
    source = index(source_format, objects)
    assert dict(source.columns) == {'i': 'int', 's': 'str', 'f': 'float64', 'b': 'bytes', 'ok': 'uint8'}
    assert [part.rows for part in source.parts] == [4, 4, 2]
    assert rows(source, objects) == samples


def test_columns_are_chosen(tmp_path):
    objects = write(tmp_path, [{'n': n, 's': str(n)} for n in range(3)])
    assert rows(index(source_format, objects, columns=['s']), objects) == [{'s': str(n)} for n in range(3)]
    with pytest.raises(StreamError, match="asks for 'x'"):
        index(source_format, objects, columns=['x'])


def test_folders_of_splits(tmp_path):
    objects = {
        f'{split}/{name}': data
        for n, split in enumerate(('train', 'val'))
        for name, data in write(tmp_path / split, [{'n': 10 * n + m, 't': np.ones((1, 1))} for m in range(3)]).items()
    }
    with pytest.raises(StreamError, match='several datasets: train, val'):
        index(source_format, objects)
    val = {name: data for name, data in objects.items() if name.startswith('val')}
    assert [row['n'] for row in rows(index(source_format, val), val)] == [10, 11, 12]


@pytest.mark.parametrize(
    'name',
    ['optimized', 'optimized_zstd', 'older'],
)
def test_frozen_folders(name):
    """Folders of `litdata.optimize` 0.2.76, and one whose index lacks the keys that newer versions add."""
    objects = read(FROZEN / name)
    found = rows(index(source_format, objects), objects)
    assert sorted(row['id'] for row in found) == list(range(12))
    for row in found:
        np.testing.assert_array_equal(row['tokens'], np.arange(row['id'] + 1))
        assert row['text'] == f'document {row["id"]}'


def changed(objects: dict[str, bytes], **config: Any) -> dict[str, bytes]:
    value = json.loads(objects['index.json'])
    value['config'].update(config)
    return {**objects, 'index.json': json.dumps(value).encode()}


DEEP = '{"type": "builtins.list", "children_spec": ['


def leaf_spec(text: str) -> str:
    return json.dumps([1, json.loads(text)])


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'encryption': {'algorithm': 'fernet'}}, 'encrypted'),
        ({'item_loader': ['x']}, r"need \['x'\]"),
        ({'item_loader': 'ParquetLoader'}, "format='parquet'"),
        ({'item_loader': 'TemporalArrayLoader'}, 'TemporalArrayLoader'),
        ({'data_spec': None}, 'tree, version 1'),
        ({'data_spec': '[1, {"type": null'}, 'not JSON'),
        ({'data_spec': '[1, {"type": null, "context": null, "children_spec": []}]'}, 'fewer leaves'),
        ({'data_spec': leaf_spec('{"type": "os.system", "context": "[]", "children_spec": []}')}, 'os.system'),
        (
            {'data_spec': '[1, ' + '{"type": "builtins.list", "children_spec": [' * 99 + ']}' * 99 + ']'},
            'nested too deeply',
        ),
        ({'data_format': ['int', 'custom']}, "serializer 'custom'"),
        ({'data_format': ['int', 'no_header_tensor:99']}, 'have the type 99'),
        ({'data_format': ['int', 'no_header_tensor:4']}, 'complex64'),
        ({'data_format': [5] * 20_000}, 'list of names'),
        ({'data_format': 5}, 'list of names'),
        ({'types': json.loads('{"value":' * 200 + '1' + '}' * 200)}, 'nested at most 100 deep'),
    ],
)
def test_an_index_that_cannot_be_read(tmp_path, config, message):
    objects = changed(write(tmp_path, [{'n': n, 's': np.arange(3)} for n in range(3)]), **config)
    with pytest.raises(FormatError, match=message):
        index(source_format, objects)


def test_a_folder_of_mds_is_not_of_this_format():
    store = MemoryStore({'index.json': b'{"shards": [], "version": 2}', 'shard.00000.mds': b''})
    assert not source_format.find(list(store.list('')))


@pytest.fixture(scope='session')
def seeds(tmp_path_factory) -> list[dict[str, bytes]]:
    folder = tmp_path_factory.mktemp('seeds')
    return [
        write(folder / 'plain', tensors(4)),
        write(folder / 'framed', tensors(4), compression='zstd'),
        write(folder / 'chunk', tensors(4), compression='zstd', compression_level='chunk'),
        write(folder / 'sample', tensors(4), compression='zstd', compression_level='sample'),
        write(folder / 'arrow', [{'a': n, 'b': ['x'] * n} for n in range(4)]),
        write(folder / 'tokens', [np.arange(n + 1) for n in range(4)], tokens=True),
    ]


@pytest.mark.parametrize('seed', range(6))
def test_joined_chunks_are_refused(seeds, seed):
    objects = seeds[seed]
    name = next(name for name in objects if name.startswith('chunk'))
    joined = {**objects, name: objects[name] * 2}
    with pytest.raises(ShardError, match=name):
        rows(index(source_format, objects), joined)


changes = st.lists(st.tuples(st.integers(0, 1 << 12), st.binary(min_size=1, max_size=8)), max_size=3)


def check_damaged(objects: dict[str, bytes], edits: list[tuple[int, bytes]], end: int, in_index: bool) -> None:
    name = 'index.json' if in_index else next(name for name in objects if name.startswith('chunk'))
    data = bytearray(objects[name])
    for at, new in edits:
        start = at % len(data)
        data[start : start + len(new)] = new[: len(data) - start]
    objects = {**objects, name: bytes(data[: max(0, len(data) - end)])}
    with contextlib.suppress(HeadraceError):
        source = index(source_format, objects)
        for number in range(len(source.parts)):
            for _ in source.batches(number, part_bytes(source, number, objects)):
                pass


@given(st.integers(0, 5), changes, st.just(0) | st.integers(0, 400), st.booleans())
@settings(max_examples=scaled(100), deadline=None)
def test_any_damage_is_an_error_of_ours(seeds, seed, edits, end, in_index):
    check_damaged(seeds[seed], edits, end, in_index)


@pytest.mark.slow
@given(st.integers(0, 5), changes, st.just(0) | st.integers(0, 400), st.booleans())
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_damage_is_an_error_of_ours_at_length(seeds, seed, edits, end, in_index):
    check_damaged(seeds[seed], edits, end, in_index)


def test_rows_of_plain_values_that_litdata_stores_as_arrow_data(tmp_path):
    pytest.importorskip('pyarrow')
    samples: list[dict[str, Any]] = [
        {'text': f't{n}', 'tags': ['a'] * n, 'meta': {'k': n, 'deep': {'x': [n]}}, 'score': None if n == 3 else n / 2}
        for n in range(7)
    ]
    samples[5]['late'] = 'only here'
    for how in ({}, {'compression': 'zstd'}):
        objects = write(tmp_path / str(len(how)), samples, **how)
        source = index(source_format, objects)
        assert dict(source.columns) == {'text': 'str', 'tags': 'json', 'meta': 'json', 'score': 'json', 'late': 'json'}
        found = rows(source, objects)
        assert found == [{'late': None, **sample} for sample in samples]


def test_names_in_arrow_rows_that_are_not_utf8(tmp_path):
    pytest.importorskip('pyarrow')
    objects = write(tmp_path, [{'number': n, 'words': ['x'] * n} for n in range(4)])
    name = 'chunk-0-0.bin'
    objects[name] = objects[name].replace(b'number', b'\xffumber')
    with pytest.raises(ShardError, match='Arrow data in chunk-0-0.bin are damaged'):
        rows(index(source_format, objects), objects)


@pytest.mark.parametrize(
    ('chunk', 'message'),
    [
        ({'filename': '../chunk-0-0.bin'}, 'relative to its root'),
        ({'filename': 'chunk-0-7.bin'}, 'does not exist'),
        ({'chunk_size': 0}, '`chunk_size`'),
        ({'chunk_size': 1 << 70}, '`chunk_size`'),
        ({'chunk_size': 3}, 'has 4 items, but the index says 3'),
        ({'chunk_bytes': -1}, '`chunk_bytes`'),
    ],
)
def test_a_wrong_chunk(tmp_path, chunk, message):
    objects = write(tmp_path, [{'n': n, 's': np.arange(3)} for n in range(4)])
    value = json.loads(objects['index.json'])
    value['chunks'][0].update(chunk)
    objects['index.json'] = json.dumps(value).encode()
    with pytest.raises(FormatError, match=message):
        rows(index(source_format, objects), objects)


def test_a_bomb_is_refused(tmp_path):
    how = {'compression': 'zstd', 'compression_level': 'chunk'}
    objects = write(tmp_path, [{'n': n, 's': np.zeros(1 << 17, np.uint8)} for n in range(4)], **how)
    value = json.loads(objects['index.json'])
    value['chunks'][0]['chunk_bytes'] = 1000
    objects['index.json'] = json.dumps(value).encode()
    with pytest.raises(ShardError, match='at most [0-9]+ bytes'):
        rows(index(source_format, objects), objects)
