"""Arrow columns as values of MDS columns."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import numpy as np
import pytest

from headrace.format import mds_decode, mds_encode
from headrace.sources.arrow_types import arrow_columns, to_columns

pa = pytest.importorskip('pyarrow')


DAY = dt.datetime(2020, 1, 2, 3, 4, 5)
ONE = decimal.Decimal('1.10')
FILE = pa.struct([('bytes', pa.binary()), ('path', pa.string())])


WITH_NULLS: dict[str, tuple[Any, list[Any]]] = {
    'text': (pa.array(['a', None]), ['a', None]),
    'number': (pa.array([None, 2]), [None, 2]),
    'bool': (pa.array([None, True]), [None, True]),
    'decimal': (pa.array([ONE, None]), ['1.10', None]),
    'date': (pa.array([DAY.date(), None]), [18263, None]),
    'list': (pa.array([[1], None]), [[1], None]),
    'empty list': (pa.array([[1], []]), [[1], []]),
    'dictionary': (pa.array(['a', None]).dictionary_encode(), ['a', None]),
}


def read(array: Any, *, with_nulls: bool = False, metadata: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
    """The encoding of an array's column, and its values after they were stored and read."""
    schema = pa.schema([pa.field('c', array.type)])
    if metadata is not None:
        schema = schema.with_metadata({'huggingface': json.dumps({'info': {'features': {'c': metadata}}})})
    columns = arrow_columns(schema, columns=None, with_nulls=['c'] if with_nulls else [], source='the test')
    batch = pa.RecordBatch.from_arrays([array], schema=schema)
    values = to_columns(batch, columns, source='the test')['c']
    encoding = columns['c'].encoding
    if encoding.startswith('jpeg'):
        return encoding, list(values)
    stored = [mds_decode(encoding, mds_encode(encoding, value)) for value in values]
    return encoding, [value.tolist() if isinstance(value, np.ndarray) else value for value in stored]
