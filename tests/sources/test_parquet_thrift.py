"""Row groups of a footer, beside those that pyarrow reads."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_files import table

from headrace.sources.parquet_footers import read_footers
from headrace.sources.parquet_thrift import DamagedFooterError, read_row_groups
from headrace.storage import open_store

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


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
