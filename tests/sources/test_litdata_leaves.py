"""Columns of litdata's items, by the serializers of their leaves."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import FormatError, ShardError
from headrace.sources import litdata as source_format
from headrace.sources.litdata_leaves import parse_nested
from tests.support.sources.litdata_folders import tensors, write
from tests.support.sources.source_cases import index, rows
from tests.support.suite.example_counts import scaled


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


def test_an_empty_array_is_refused(tmp_path):
    torch = pytest.importorskip('torch')
    objects = write(tmp_path, [{'t': torch.arange(n), 'n': 1} for n in range(3)])
    with pytest.raises(ShardError, match=r"column 't' of chunk-0-0.bin has the shape \(0,\)"):
        rows(index(source_format, objects), objects)


def test_items_without_names(tmp_path):
    objects = write(tmp_path / 'tuples', [(n, b'x' * n, [n, 'a']) for n in range(6)])
    # litdata 0.2.76 stores a list in a tuple as leaves of their own.
    found = rows(index(source_format, objects), objects)
    assert found == [{'0': n, '1': b'x' * n, '2': [n, 'a']} for n in range(6)]
    objects = write(tmp_path / 'numbers', list(range(6)))
    assert rows(index(source_format, objects), objects) == [{'value': n} for n in range(6)]


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
