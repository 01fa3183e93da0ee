"""Ranks that are watched."""

from __future__ import annotations

from pathlib import Path

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.watching.status import RankStatus

ODD = '<b>odd</b>'


class Rank:
    """A rank that writes its status, by a clock of the test's own."""

    def __init__(self, data: Path, folder: Path, rank: int, ranks: int = 2) -> None:
        streams = [Stream(local=str(data / name), name=title) for name, title in (('a', 'code'), ('b', ODD))]
        dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=5)
        self.loader = StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks))
        self.now = 0.0
        self.status = RankStatus(folder, every=2, clock=lambda: self.now)
        self.status.begin({'': self.loader}, step=100)
        self.batches = iter(self.loader)

    def train(self, *seconds: float) -> None:
        for each in seconds:
            next(self.batches)
            self.now += each
            self.status.batch_done()
