"""NumPy's files within tars."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ShardError
from headrace.sources import tar
from tests.support.sources.source_cases import index, rows
from tests.support.sources.tars import npy, pack


@pytest.mark.parametrize(
    ('name', 'data', 'message'),
    [
        ('a.cls', b'cat', "'a.cls' in t.tar is an integer"),
        ('a.cls', b'9' * 30, 'integer of 64 bits'),
        ('a.npy', b'no array', 'not a readable .npy file'),
        ('a.npy', npy(np.array([{}], object), allow_pickle=True), 'pickled'),
        ('a.npy', npy(np.zeros(3, complex)), 'complex128'),
        ('a.npy', npy(np.zeros((0, 2))), r'shape \(0, 2\)'),
        ('a.npy', npy(np.zeros(1000))[:-1], 'other bytes than follow'),
        ('a.npy', npy(np.zeros(10)).replace(b'(10,)', b'(1<<40,)'), 'not a readable .npy file'),
        ('a.npy', npy(np.zeros(10)).replace(b"order':", b"order'{"), 'not a readable .npy file'),
    ],
)
def test_values_that_cannot_be_stored(name, data, message):
    objects = {'t.tar': pack([(name, data)])}
    with pytest.raises(ShardError, match=message):
        rows(index(tar, objects), objects)


@pytest.mark.parametrize(
    'array', [np.array(3.5), np.array([True, False]), np.asfortranarray(np.arange(6).reshape(2, 3))]
)
def test_arrays_of_npy_files(array):
    objects = {'t.tar': pack([('a.npy', npy(array))])}
    found = rows(index(tar, objects), objects)[0]['npy']
    np.testing.assert_array_equal(found, array.reshape(1) if array.ndim == 0 else array)
    assert found.dtype == (np.uint8 if array.dtype == bool else array.dtype)
