"""A pass of a plain `torch.utils.data.DataLoader`, sample by sample."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from headrace import MDSWriter, StreamingDataset, Topology
from headrace.dataset.batch_keys import PADDING_KEY


@pytest.mark.parametrize('workers', [0, 2])
def test_each_worker_has_every_nth_batch_of_the_plan(tmp_path: Path, workers: int) -> None:
    with MDSWriter(out=str(tmp_path), columns={'id': 'int'}, size_limit=200) as writer:
        for number in range(29):
            writer.write({'id': number})
    for rank in (0, 1):
        topology = Topology(rank=rank, world_size=2)
        dataset = StreamingDataset(
            local=str(tmp_path), shuffle=True, batch_size=4, remainder='exact', topology=topology
        )
        for epoch in (0, 1):
            batches = list(DataLoader(dataset, batch_size=4, num_workers=workers))
            plan = dataset.plan(epoch=epoch)
            assert [batch['id'].tolist() for batch in batches] == [plan.ids(k).tolist() for k in range(4)]
            own = [int((~batch[PADDING_KEY.key]).sum()) for batch in batches]
            assert own == [plan.own_samples(k) for k in range(4)]
