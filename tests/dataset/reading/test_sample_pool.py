"""Batches of fixed-size values equal what `default_collate` makes of their samples, however shards store them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology

COLUMNS = {'tokens': 'ndarray:int32:200', 'id': 'int', 'weight': 'float32', 'box': 'ndarray:float64:2,3'}


def write(folder: Path, first: int, samples: int, extra: dict[str, str]) -> Path:
    """A dataset of shards of 3 samples."""
    rng = np.random.default_rng(first)
    with MDSWriter(out=str(folder), columns={**COLUMNS, **extra}, size_limit=3100) as writer:
        for number in range(first, first + samples):
            writer.write(
                {
                    'tokens': rng.integers(-9, 50_000, 200, dtype=np.int32),
                    'id': number,
                    'weight': np.float32(rng.random()),
                    'box': rng.random((2, 3)),
                    **dict.fromkeys(extra, np.int16(-number)),
                }
            )
    return folder


def assert_batches_equal_samples(dataset: StreamingDataset, batch_size: int) -> list[int]:
    """Each batch has the samples of its plan; returns all ids in their order."""
    loader, seen = StreamingDataLoader(dataset, batch_size=batch_size, topology=Topology(rank=0, world_size=1)), []
    plan = loader.plan(0)
    for number, batch in enumerate(loader):
        expected = default_collate([dataset[at] for at in plan.ids(number).tolist()])
        assert list(batch) == list(expected)
        for name, values in batch.items():
            assert values.dtype == expected[name].dtype
            assert torch.equal(values, expected[name])
            assert values.is_contiguous()
            values.add_(1)  # a batch is its user's, and not the file's
        seen += expected['id'].tolist()
    return seen


@pytest.mark.parametrize('batch_size', [1, 5, 40])
@pytest.mark.parametrize('columns', [None, ['id', 'box'], ['tokens']])
def test_batches_of_one_schema(tmp_path: Path, batch_size: int, columns: list[str] | None) -> None:
    write(tmp_path, 0, 40, {})
    kept = None if columns is None else sorted({*columns, 'id'})
    dataset = StreamingDataset(local=str(tmp_path), shuffle=True, columns=kept)
    assert sorted(assert_batches_equal_samples(dataset, batch_size)) == list(range(40))


def test_streams_that_store_other_columns_beside_them(tmp_path: Path) -> None:
    streams = [
        Stream(local=str(write(tmp_path / 'a', 0, 30, {}))),
        Stream(local=str(write(tmp_path / 'b', 30, 30, {'aaa': 'int16', 'more': 'int16'}))),
    ]
    dataset = StreamingDataset(streams=streams, shuffle=True, columns=list(COLUMNS))
    assert sorted(assert_batches_equal_samples(dataset, 6)) == list(range(60))


def test_streams_of_equal_columns_are_joined(tmp_path: Path) -> None:
    streams = [Stream(local=str(write(tmp_path / name, first, 30, {}))) for name, first in [('a', 0), ('b', 30)]]
    dataset = StreamingDataset(streams=streams, shuffle=True)
    assert sorted(assert_batches_equal_samples(dataset, 6)) == list(range(60))
    assert dataset.pool.opened.joined is not None
    of_both = dataset.pool.opened.joined.batch([0, 10, 1, 11], np.array([2, 0, 1, 1]))
    assert of_both is not None
    assert of_both['id'].tolist() == [2, 30, 4, 34]


def test_a_kept_batch_never_changes(tmp_path: Path) -> None:
    write(tmp_path, 0, 40, {})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True)
    kept = list(StreamingDataLoader(dataset))
    copies = [{name: values.clone() for name, values in batch.items()} for batch in kept]
    assert len(list(StreamingDataLoader(dataset))) == 10
    assert all(torch.equal(batch[name], copy[name]) for batch, copy in zip(kept, copies, strict=True) for name in copy)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, 40, {})
    shard = tmp_path / 'shard.00003.mds'
    data = bytearray(shard.read_bytes())
    data[4:8] = (1 << 20).to_bytes(4, 'little')
    shard.write_bytes(data)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True)
    with pytest.raises(ValueError, match=r'shard\.00003\.mds is damaged'):
        list(StreamingDataLoader(dataset))
