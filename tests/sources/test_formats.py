"""The search for the format and the split of a listing."""

from __future__ import annotations

from pathlib import Path

import pytest
from parquet_stores import keys, store_of, write

from headrace.errors import EmptyDatasetError, StreamError
from headrace.sources.formats import choose_split
from headrace.storage import ObjectInfo

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


@pytest.mark.parametrize(
    ('names', 'split', 'chosen'),
    [
        (['train/0.parquet', 'test/0.parquet'], 'train', ['train/0.parquet']),
        (['data/train-00000-of-00001.parquet', 'data/train_sft-00000-of-00001.parquet'], 'train', [0]),
        (['data/train-00000-of-00001.parquet', 'data/train_sft-00000-of-00001.parquet'], 'train_sft', [1]),
        (['train.parquet', 'test.parquet'], 'test', [1]),
        (['plain_text/train/0.parquet', 'plain_text/test/0.parquet'], 'train', [0]),
        (['constraint.parquet'], 'train', None),
    ],
)
def test_a_split_is_found_by_names(names: list[str], split: str, chosen: list[int | str] | None) -> None:
    objects = [ObjectInfo(name, 1, '') for name in names]
    if chosen is None:
        with pytest.raises(EmptyDatasetError, match='constraint'):
            choose_split(objects, split, 'x')
        return
    found = [info.key for info in choose_split(objects, split, 'x')]
    assert found == [names[name] if isinstance(name, int) else name for name in chosen]


def test_a_listing_of_several_formats_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 'a.parquet')
    (tmp_path / 'b.tar').write_bytes(b'')
    with pytest.raises(StreamError, match=r"parquet, webdataset.*format='parquet'"):
        store_of(tmp_path).find()
    assert keys(store_of(tmp_path, format_name='parquet')) == ['a.parquet']
    (tmp_path / 'shard.00000.mds').write_bytes(b'')
    assert store_of(tmp_path).find() == (None, [])
    with pytest.raises(EmptyDatasetError, match="of the format 'arrow'"):
        store_of(tmp_path, format_name='arrow').find()
