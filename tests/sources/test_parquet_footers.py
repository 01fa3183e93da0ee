"""Footers of Parquet files: read in few requests, and kept."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources import parquet
from headrace.sources.parquet_footers import DamagedFooterError, read_footers, read_row_groups
from headrace.storage import open_store
from tests.support.sources.parquet_files import as_python, index, read, table, write

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def test_a_long_footer_takes_a_second_read(tmp_path: Path) -> None:
    write(tmp_path / 'a.parquet', 700, row_group_size=1)
    content = (tmp_path / 'a.parquet').read_bytes()
    assert int.from_bytes(content[-8:-4], 'little') > 64 << 10
    assert as_python(read(tmp_path, index(tmp_path))) == table(700).to_pylist()


def test_ten_thousand_row_groups_are_loaded_without_their_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in range(2):
        pq.write_table(pa.table({'id': np.arange(5000)}), tmp_path / f'{file}.parquet', row_group_size=1)
    packed = index(tmp_path).to_bytes()
    assert len(packed) < 100 * 10_000
    monkeypatch.setattr(parquet, 'parse_footer', None)
    source = parquet.load(packed)
    assert len(source.parts) == 10_000
    assert source.parts[9999].key == '1.parquet'


@pytest.mark.parametrize('version', ['1.0', '2.6'])
def test_row_groups_are_those_that_pyarrow_reads(tmp_path: Path, version: Any) -> None:
    path = tmp_path / 'a.parquet'
    pq.write_table(table(100), path, row_group_size=30, version=version, write_page_index=version == '2.6')
    (footer,) = read_footers(open_store(tmp_path), list(open_store(tmp_path).list('')))
    metadata = pq.read_metadata(path)
    groups = read_row_groups(footer)
    assert len(groups) == metadata.num_row_groups == 4
    for number, group in enumerate(groups):
        theirs = metadata.row_group(number)
        assert group.rows == theirs.num_rows
        for leaf, chunk in enumerate(group.columns):
            column = theirs.column(leaf)
            assert chunk[:-1] == (
                column.path_in_schema,
                column.dictionary_page_offset or column.data_page_offset,
                column.total_compressed_size,
                column.total_uncompressed_size,
                column.statistics.null_count,
            )
    begin = path.stat().st_size - 8 - len(footer)
    assert max(chunk.end for group in groups for chunk in group.columns) == begin


@given(st.binary(max_size=200))
def test_bytes_that_are_no_footer_are_an_error_or_have_no_rows(data: bytes) -> None:
    with contextlib.suppress(DamagedFooterError):
        read_row_groups(data)
