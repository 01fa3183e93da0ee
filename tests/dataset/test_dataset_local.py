"""A folder of shards as a map-style dataset."""

from __future__ import annotations

from headrace import (
    LocalDataset,
)


def test_local_dataset(make_dataset):
    dataset = LocalDataset(str(make_dataset('data', 12)))
    assert len(dataset) == 12
    assert dataset[-2]['id'] == 10
