"""Footers of Parquet files: read in few requests, and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parquet_files import as_python, index, read, table, write

from headrace.sources import parquet

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
