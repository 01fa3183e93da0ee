"""The search for the format of a listing."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import EmptyDatasetError, StreamError
from headrace.sources.formats import formats_in
from headrace.storage import ObjectInfo
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
    assert store_of(tmp_path).find()[0] is None
    with pytest.raises(EmptyDatasetError, match="of the format 'arrow'"):
        store_of(tmp_path, format_name='arrow').find()


@pytest.mark.parametrize(
    ('names', 'in_folder', 'if_named'),
    [
        ('a.json', {}, {'jsonl': 1}),
        ('a.json b.json dataset_info.json', {}, {'jsonl': 2}),
        ('a.json b.jsonl', {'jsonl': 1}, {'jsonl': 1}),
        ('a.json b.parquet', {'parquet': 1}, {'parquet': 1}),
        ('a.json.gz', {'jsonl': 1}, {'jsonl': 1}),
        ('a.json shard.00000.mds', {}, {}),
        ('dataset_info.json', {}, {}),
    ],
)
def test_a_json_file_is_data_if_it_is_named_and_alone(
    names: str, in_folder: dict[str, int], if_named: dict[str, int]
) -> None:
    objects = [ObjectInfo(name, 1, '') for name in names.split()]
    assert formats_in(objects) == in_folder
    assert formats_in(objects, is_named=True) == if_named
