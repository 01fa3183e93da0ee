"""Stores of Parquet files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headrace.sources.source_index import SourceIndex
from headrace.sources.source_store import SourceStore
from headrace.storage import StoreOptions

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def write(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({'id': [number] * 30, 'text': ['x' * 50] * 30}), folder / name, row_group_size=10)
    return folder


def store_of(remote: object, split: str | None = None, format_name: str | None = None) -> SourceStore:
    return SourceStore(
        str(remote), StoreOptions(), split=split, format_name=format_name, columns=None, allow_unsafe_types=False
    )


def index(store: SourceStore) -> SourceIndex:
    out = io.BytesIO()
    version = store.get(store.index_name, out)
    assert version == store.head(store.index_name).etag
    store.index = SourceIndex.from_bytes(out.getvalue())
    return store.index


def keys(store: SourceStore) -> list[str]:
    return [info.key for info in store.find()[1]]
