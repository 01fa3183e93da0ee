"""Samples by their ids."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MDSWriter, StreamingDataset
from headrace.errors import ShardError


def test_random_access(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset('data', 35)))
    assert dataset[0]['id'] == 0
    assert dataset[-1]['id'] == 34
    assert dataset[np.int64(7)]['id'] == 7
    assert [s['id'] for s in dataset[30:]] == [30, 31, 32, 33, 34]
    assert [s['id'] for s in dataset[::-10]] == [34, 24, 14, 4]
    assert [s['id'] for s in dataset[[3, -1, 5]]] == [3, 34, 5]
    assert [s['id'] for s in dataset[np.array([1, 2])]] == [1, 2]
    assert np.array_equal(dataset[9]['row'], np.full(4, 9, np.float32))


@pytest.fixture(scope='module')
def documents(tmp_path_factory: pytest.TempPathFactory) -> StreamingDataset:
    """Texts and arrays of different lengths, in several shards."""
    folder = tmp_path_factory.mktemp('documents')
    with MDSWriter(out=str(folder), columns={'tokens': 'ndarray:uint16', 'text': 'str'}, size_limit=2000) as writer:
        for number in range(60):
            writer.write({'text': str(number), 'tokens': np.arange(number % 7 * 50 + 1, dtype=np.uint16) + number})
    return StreamingDataset(local=str(folder))


@given(st.lists(st.integers(0, 59)))
def test_samples_of_a_list_are_those_taken_one_by_one(documents: StreamingDataset, ids: list[int]) -> None:
    for wanted in (ids, np.array(ids, np.int64)):
        found = documents[wanted]
        assert [sample['text'] for sample in found] == [str(number) for number in ids]
        for sample, number in zip(found, ids, strict=True):
            np.testing.assert_array_equal(sample['tokens'], documents[number]['tokens'], strict=True)
            sample['tokens'][:] = 0  # each may be changed, and changes no other


@pytest.mark.parametrize('encoding', ['ndarray:float32', 'ndarray:float32:10000'])
def test_a_kept_sample_of_a_list_keeps_no_large_arrays_of_others(tmp_path: Path, encoding: str) -> None:
    with MDSWriter(out=str(tmp_path), columns={'sound': encoding}) as writer:
        for number in range(200):
            writer.write({'sound': np.full(10_000, number, np.float32)})
    dataset = StreamingDataset(local=str(tmp_path))
    dataset[0]
    tracemalloc.start()
    try:
        kept = dataset[:][7]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept['sound'].nbytes <= size < 1 << 20


def test_a_list_with_a_damaged_sample_is_refused(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={'tokens': 'ndarray:uint16'}) as writer:
        for number in range(20):
            writer.write({'tokens': np.array([number], np.uint16)})
    shard = next(tmp_path.glob('*.mds'))
    shard.write_bytes(shard.read_bytes()[:-3] + b'\0' + shard.read_bytes()[-2:])
    dataset = StreamingDataset(local=str(tmp_path))
    assert [int(sample['tokens'][0]) for sample in dataset[:19]] == [*range(19)]
    with pytest.raises(ShardError, match="sample 19, column 'tokens'"):
        dataset[5:]
