"""Samples by their ids."""

from __future__ import annotations

import numpy as np

from headrace import (
    StreamingDataset,
)


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
