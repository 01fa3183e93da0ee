"""Trees of litdata's items: names of inner columns."""

from __future__ import annotations

import numpy as np
import pytest
from litdata_folders import write
from source_cases import index, rows

from headrace.errors import FormatError
from headrace.sources import litdata as source_format


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
