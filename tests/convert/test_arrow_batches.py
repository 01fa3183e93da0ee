"""Arrow batches as columns for a writer."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import LocalDataset
from headrace.convert.parts import PartedDataset
from headrace.convert.spark import write_partition

pa = pytest.importorskip('pyarrow')
pd = pytest.importorskip('pandas')
T = pytest.importorskip('pyspark.sql.types')


BATCH = pa.table(
    {
        'n': pa.array([1, 2, 3], pa.int64()),
        'small': pa.array([-1, 0, 1], pa.int8()),
        'f': pa.array([0.5, 1.5, 2.5], pa.float32()),
        'text': pa.array(['a', 'ä', '']),
        'raw': pa.array([b'', b'\0', b'xyz'], pa.binary()),
        'tokens': pa.array([[1], [2, 3], [65535]], pa.list_(pa.int32())),
        'pair': pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32())),
        'price': pa.array([decimal.Decimal('1.50')] * 3, pa.decimal128(10, 2)),
        'tags': pa.array([['a'], [], ['b', None]], pa.list_(pa.string())),
        'map': pa.array([[('k', 1)], [], [('k', 2)]], pa.map_(pa.string(), pa.int64())),
        'meta': pa.array([{'a': [1]}, {'a': []}, None], pa.struct([('a', pa.list_(pa.int64()))])),
        'at': pa.array([dt.datetime(1970, 1, 1, 0, 0, second) for second in range(3)], pa.timestamp('us')),
    }
)


COLUMNS = {
    'n': 'int', 'small': 'int8', 'f': 'float32', 'text': 'str', 'raw': 'bytes', 'tokens': 'ndarray:uint16',
    'pair': 'ndarray:float32:2', 'price': 'str_decimal', 'tags': 'json', 'map': 'json', 'meta': 'json', 'at': 'int64',
}  # fmt: skip


def write_batches(folder: Path, columns: dict[str, str], *batches: Any, **options: Any) -> list[dict[str, Any]]:
    dataset = PartedDataset(str(folder), columns, {}, **options)
    try:
        dataset.finish([write_partition(dataset.begin(), 0, batches)])
    except BaseException:
        dataset.abort()
        raise
    return [dict(sample) for sample in LocalDataset(str(folder))]


def test_values_of_arrow_batches(tmp_path: Path) -> None:
    (batch,) = BATCH.to_batches()
    first, second, third = write_batches(tmp_path / 'd', COLUMNS, batch.slice(0, 1), batch.slice(1))
    assert [second[name] for name in ('n', 'small', 'f', 'text', 'raw')] == [2, 0, 1.5, 'ä', b'\0']
    assert second['price'] == decimal.Decimal('1.50')
    assert (second['tags'], third['tags']) == ([], ['b', None])
    assert (first['map'], second['map'], third['meta']) == ({'k': 1}, {}, None)
    assert [sample['at'] for sample in (first, second, third)] == [0, 1_000_000, 2_000_000]
    assert third['tokens'].dtype == np.uint16
    assert second['tokens'].tolist() == [2, 3]
    assert third['pair'].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ('values', 'kind', 'encoding'),
    [
        (['a', None, 'c'], pa.string(), 'str'),
        ([1, None, 3], pa.int64(), 'int64'),
        ([1, 300, 3], pa.int32(), 'uint8'),
        ([[1], [-1], [3]], pa.list_(pa.int32()), 'ndarray:uint16'),
        ([[1], [], [3]], pa.list_(pa.int32()), 'ndarray:int32'),
        ([[1], [1, None], [3]], pa.list_(pa.int32()), 'ndarray:int32'),
        ([[1], [1, 2], [3]], pa.list_(pa.int32()), 'ndarray:int32:1'),
    ],
)
def test_values_that_a_column_cannot_store(values: list[Any], kind: Any, encoding: str, tmp_path: Path) -> None:
    batch = pa.record_batch({'x': pa.array(values, kind)})
    with pytest.raises((AttributeError, ValueError, OverflowError, TypeError), match=r"Sample 1, column 'x'"):
        write_batches(tmp_path / 'd', {'x': encoding}, batch)
    with pytest.warns(UserWarning, match=r"Sample 1, column 'x'"):
        kept = write_batches(tmp_path / 'd', {'x': encoding}, batch, on_bad_sample='skip')
    assert [np.asarray(sample['x']).tolist() for sample in kept] == [values[0], values[2]]
