"""The index of a source: its version, and the shards that stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.sources.parquet_stores import index, store_of, write

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def test_the_version_of_the_index_tells_of_changed_objects(tmp_path: Path) -> None:
    store = store_of(write(tmp_path, 'a.parquet', 'b.parquet'))
    before = store.head(store.index_name).etag
    assert store_of(tmp_path).head(store.index_name).etag == before
    (tmp_path / 'README.md').write_text('x')
    assert store.head(store.index_name).etag == before
    os.utime(tmp_path / 'b.parquet', (1, 1))
    assert store.head(store.index_name).etag != before


def test_files_that_stay_keep_their_shards(tmp_path: Path) -> None:
    old = index(store_of(write(tmp_path, 'a.parquet', 'b.parquet', 'c.parquet')))
    os.utime(tmp_path / 'b.parquet', (1, 1))
    (tmp_path / 'c.parquet').unlink()
    new = index(store_of(write(tmp_path / '0', 'x.parquet').parent))
    changed = {name.partition('.parquet')[0] for name in new.unproven(old)}
    assert changed == {'b', 'c', '0/x'}
    assert {name.partition('.parquet')[0] for name in new.unproven(None)} == {'a', 'b', '0/x'}
