"""Columns of litdata's items, by the serializers of their leaves."""

from __future__ import annotations

import numpy as np
import pytest
from litdata_folders import tensors, write
from source_cases import index, rows

from headrace.errors import FormatError, ShardError
from headrace.sources import litdata as source_format


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
