"""Batches of a rank, as `default_collate` makes them."""

from __future__ import annotations

import torch
from torch.utils.data import default_collate

from headrace import StreamingDataLoader, StreamingDataset


def test_batches_equal_what_default_collate_gives(make_dataset):
    folder = make_dataset('d', 40)
    fast = StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=7, shuffle=True))
    slow = StreamingDataLoader(
        StreamingDataset(local=str(folder), batch_size=7, shuffle=True), collate_fn=lambda rows: default_collate(rows)
    )
    for was, now in zip(slow, fast, strict=True):
        assert list(was) == list(now)
        for name, column in was.items():
            assert torch.equal(column, now[name])
            assert column.dtype == now[name].dtype
        now['row'].add_(1)  # a batch is writable, and its own
