"""Tables of lakehouses: what their own libraries read, as our readers of Parquet give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import Stream, StreamingDataset
from tests.support.sources.parquet_files import as_python, index, read

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(as_python(rows), key=lambda row: row['id'])


def as_parquet(table: Any, folder: Path) -> list[dict[str, Any]]:
    """The rows of an Arrow table, sorted by `id`, as a plain Parquet file of it is read."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / 'a.parquet')
    return by_id(read(folder, index(folder)))


def dataset(remote: object, cache: Path, **options: Any) -> StreamingDataset:
    stream = Stream(remote=str(remote), local=str(cache), **options)
    return StreamingDataset(streams=[stream], batch_size=4, shuffle=False)


def rows_of(remote: object, cache: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows that a stream reads, sorted by `id`."""
    return by_id([*dataset(remote, cache, **options)])
