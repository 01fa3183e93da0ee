"""The search for the format of a listing."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import EmptyDatasetError, StreamError
from tests.support.sources.parquet_stores import keys, store_of, write

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def test_a_listing_of_several_formats_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 'a.parquet')
    (tmp_path / 'b.tar').write_bytes(b'')
    with pytest.raises(StreamError, match=r"parquet \(1 file\), webdataset \(1 file\).*format='parquet'"):
        store_of(tmp_path).find()
    assert keys(store_of(tmp_path, format_name='parquet')) == ['a.parquet']
    (tmp_path / 'shard.00000.mds').write_bytes(b'')
    assert store_of(tmp_path).find() == (None, [])
    with pytest.raises(EmptyDatasetError, match="of the format 'arrow'"):
        store_of(tmp_path, format_name='arrow').find()
