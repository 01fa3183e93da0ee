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
from source_cases import MemoryStore, index, part_bytes, rows

from example_counts import scaled
from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import litdata as source_format
from headrace.sources.litdata_json import parse_nested

FROZEN = Path(__file__).parents[1] / 'data' / 'litdata'


def write(
    folder: Path, samples: list[Any], *, tokens: bool = False, chunk_size: int = 4, **how: Any
) -> dict[str, bytes]:
    """The objects that litdata writes."""
    pytest.importorskip('litdata')
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(exist_ok=True)
    writer = BinaryWriter(str(folder), chunk_size=chunk_size, item_loader=TokensLoader() if tokens else None, **how)
    for number, sample in enumerate(samples):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()
    return read(folder)


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_numbers_and_text(tmp_path):
    samples = [{'i': n - 3, 's': f'ä{n}', 'f': n / 3, 'b': bytes([n]), 'ok': n % 2 == 0} for n in range(10)]
    objects = write(tmp_path, samples)
    source = index(source_format, objects)
    assert dict(source.columns) == {'i': 'int', 's': 'str', 'f': 'float64', 'b': 'bytes', 'ok': 'uint8'}
    assert [part.rows for part in source.parts] == [4, 4, 2]
    assert rows(source, objects) == samples


def tensors(count: int = 10) -> list[dict[str, Any]]:
    torch = pytest.importorskip('torch')
    return [
        {
            'tokens': torch.arange(n + 1),
            'half': torch.full((n + 1,), 1.5, dtype=torch.bfloat16).float(),
            'matrix': torch.full((2, n + 1), n, dtype=torch.float16),
            'label': torch.tensor(n),
            'mask': torch.tensor([[True, n % 2 == 0]]),
            'row': np.arange(3, dtype=np.uint16) * n,
            'table': np.full((2, 2), n / 2),
            'id': n,
            'name': f'n{n}',
        }
        for n in range(count)
    ]


@pytest.mark.parametrize(
    'how',
    [
        {},
        {'compression': 'zstd'},
        {'compression': 'zstd', 'compression_batch_size': 3},
        {'compression': 'zstd:7', 'compression_level': 'chunk'},
        {'compression': 'zstd', 'compression_level': 'sample'},
    ],
)
def test_arrays_of_all_compressions(tmp_path, how):
    samples = tensors()
    objects = write(tmp_path, samples, **how)
    source = index(source_format, objects)
    assert dict(source.columns) == {
        'tokens': 'ndarray:int64',
        'half': 'ndarray:float32',
        'matrix': 'ndarray',
        'label': 'int64',
        'mask': 'ndarray',
        'row': 'ndarray:uint16',
        'table': 'ndarray',
        'id': 'int',
        'name': 'str',
    }
    for found, sample in zip(rows(source, objects), samples, strict=True):
        for name, value in sample.items():
            expected = np.asarray(value)
            np.testing.assert_array_equal(found[name], expected.astype(np.uint8) if name == 'mask' else expected)


def test_items_without_names(tmp_path):
    objects = write(tmp_path / 'tuples', [(n, b'x' * n, [n, 'a']) for n in range(6)])
    # litdata 0.2.76 stores a list in a tuple as leaves of their own.
    found = rows(index(source_format, objects), objects)
    assert found == [{'0': n, '1': b'x' * n, '2': [n, 'a']} for n in range(6)]
    objects = write(tmp_path / 'numbers', list(range(6)))
    assert rows(index(source_format, objects), objects) == [{'value': n} for n in range(6)]


def test_images(tmp_path):
    from PIL import Image

    pictures = [Image.fromarray(np.full((4, 3 + n, 3), 20 * n, np.uint8)) for n in range(5)]
    paths = []
    for n, picture in enumerate(pictures):
        paths.append(tmp_path / f'{n}.jpg')
        picture.save(paths[-1])
    samples = [
        {'raw': p, 'file': Image.open(path), 'n': n} for n, (p, path) in enumerate(zip(pictures, paths, strict=True))
    ]
    objects = write(tmp_path / 'chunks', samples)
    source = index(source_format, objects)
    assert dict(source.columns) == {'raw': 'pil', 'file': 'jpeg', 'n': 'int'}
    for n, found in enumerate(rows(source, objects)):
        np.testing.assert_array_equal(np.asarray(found['raw']), np.asarray(pictures[n]))
        np.testing.assert_array_equal(np.asarray(found['file']), np.asarray(Image.open(paths[n])))


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


def test_tokens(tmp_path):
    torch = pytest.importorskip('torch')
    documents = [torch.arange(n, 2 * n + 1).to(torch.uint16) for n in range(8)]
    for how in ({}, {'compression': 'zstd', 'compression_level': 'chunk'}):
        objects = write(tmp_path / str(len(how)), documents, tokens=True, chunk_size=20, **how)
        source = index(source_format, objects)
        assert dict(source.columns) == {'tokens': 'ndarray:uint16'}
        for found, document in zip(rows(source, objects), documents, strict=True):
            np.testing.assert_array_equal(found['tokens'], document.numpy())


def test_pickles_need_leave(tmp_path):
    objects = write(tmp_path, [{'n': n, 'set': {n}} for n in range(3)])
    with pytest.raises(FormatError, match="'set'.*allow_unsafe_types=True"):
        index(source_format, objects)
    assert rows(index(source_format, objects, columns=['n']), objects) == [{'n': n} for n in range(3)]
    allowed = index(source_format, objects, allow_unsafe_types=True)
    assert rows(allowed, objects) == [{'n': n, 'set': {n}} for n in range(3)]


def test_columns_are_chosen(tmp_path):
    objects = write(tmp_path, [{'n': n, 's': str(n)} for n in range(3)])
    assert rows(index(source_format, objects, columns=['s']), objects) == [{'s': str(n)} for n in range(3)]
    with pytest.raises(StreamError, match="asks for 'x'"):
        index(source_format, objects, columns=['x'])


def test_names_of_inner_columns(tmp_path):
    samples = [{'a': {'x': np.full(2, n), 'y': b'y'}, 'b': {'c': n}} for n in range(3)]
    objects = write(tmp_path / 'inner', samples)
    source = index(source_format, objects)
    assert dict(source.columns) == {'a.x': 'ndarray:int64', 'a.y': 'bytes', 'b': 'json'}
    assert [(row['a.x'].tolist(), row['a.y'], row['b']) for row in rows(source, objects)] == [
        ([n, n], b'y', {'c': n}) for n in range(3)
    ]
    objects = write(tmp_path / 'twice', [{'a': {'x': np.ones(2)}, 'a.x': 1}])
    with pytest.raises(FormatError, match="two of these are 'a.x'"):
        index(source_format, objects)


def test_an_empty_array_is_refused(tmp_path):
    torch = pytest.importorskip('torch')
    objects = write(tmp_path, [{'t': torch.arange(n), 'n': 1} for n in range(3)])
    with pytest.raises(ShardError, match=r"column 't' of chunk-0-0.bin has the shape \(0,\)"):
        rows(index(source_format, objects), objects)


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


def test_a_folder_of_mds_is_not_of_this_format():
    store = MemoryStore({'index.json': b'{"shards": [], "version": 2}', 'shard.00000.mds': b''})
    assert not source_format.find(list(store.list('')))


nested = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(nested)
@settings(max_examples=scaled(100), deadline=None)
def test_nested_values(value):
    serializers = pytest.importorskip('litdata.streaming.serializers')
    data, _ = serializers.JsonSerializer().serialize(serializers.JsonLeaf(value))
    assert parse_nested(data) == serializers.JsonSerializer().deserialize(data)


@given(nested, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 20))
@settings(max_examples=scaled(100), deadline=None)
def test_damaged_nested_values(value, edits, end):
    serializers = pytest.importorskip('litdata.streaming.serializers')
    data = bytearray(serializers.JsonSerializer().serialize(serializers.JsonLeaf(value))[0])
    for at, byte in edits:
        data[at % len(data)] = byte
    with contextlib.suppress(FormatError):
        parse_nested(bytes(data[: len(data) - end]))


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
