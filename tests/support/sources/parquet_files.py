"""Parquet files, and what is read of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.sources import parquet
from headrace.storage import open_store

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def table(rows: int, first: int = 0) -> Any:
    """Rows whose columns all tell their number."""
    numbers = range(first, first + rows)
    return pa.table(
        {
            'id': pa.array(numbers, pa.int64()),
            'text': pa.array([f'text {i}' for i in numbers], pa.string()),
            'tokens': pa.array([[i] * (1 + i % 5) for i in numbers], pa.list_(pa.int32())),
            'filler': pa.array([np.random.default_rng(i).bytes(100) for i in numbers], pa.binary()),
            'label': pa.array([None if i % 7 == 3 else 'x' for i in numbers], pa.string()),
            'deep': pa.array(
                [{'a': [i, None], 'b': {'c': str(i)}} for i in numbers],
                pa.struct([('a', pa.list_(pa.int64())), ('b', pa.struct([('c', pa.string())]))]),
            ),
        }
    )


def write(path: Path, rows: int, first: int = 0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(rows, first), path, **{'row_group_size': 25, **options})
    return path


def index(folder: Path, columns: Sequence[str] | None = None) -> parquet.ParquetSource:
    store = open_store(folder)
    return parquet.index(store, parquet.find(list(store.list(''))), columns=columns, allow_unsafe_types=False)


def read(folder: Path, source: parquet.ParquetSource) -> list[dict[str, Any]]:
    """All rows, from nothing but the bytes of the parts' ranges."""
    rows: list[dict[str, Any]] = []
    for number, part in enumerate(source.parts):
        content = (folder / part.key).read_bytes()
        data = b''.join(content[offset : offset + size] for offset, size in part.ranges)
        before = len(rows)
        for batch in source.batches(number, memoryview(data)):
            rows += [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        assert len(rows) - before == part.rows
    return rows


def as_python(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: getattr(value, 'tolist', lambda v=value: v)() for name, value in row.items()} for row in rows]
