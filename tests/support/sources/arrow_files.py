"""Arrow streams and files, and what is read of them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from headrace.sources import arrow
from tests.support.sources.source_cases import index, rows

pa = pytest.importorskip('pyarrow')


def stream(batches: list[Any], **how: Any) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batches[0].schema, options=pa.ipc.IpcWriteOptions(**how)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue()


def batch(first: int, count: int) -> Any:
    return pa.RecordBatch.from_pylist(
        [
            {
                'n': n,
                'text': f'ä{n}',
                'tokens': list(range(n % 7 + 1)),
                'maybe': None if n == 20 else n / 2,
                'nested': {'a': [n], 'b': str(n)},
                'raw': bytes([n % 256]),
            }
            for n in range(first, first + count)
        ]
    )


BATCHES = [batch(0, 10), batch(10, 15), batch(25, 5)]
ROWS = [row for one in BATCHES for row in one.to_pylist()]


def check(objects: dict[str, bytes], expected: list[dict[str, Any]], **how: Any) -> None:
    found = rows(index(arrow, objects, **how), objects)
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
        assert plain == other
