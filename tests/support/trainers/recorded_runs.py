"""Runs that are recorded, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.watching import RecordedRun, RunRecorder

SIZES = {'a': 50, 'b': 80}
BATCH = 10


class Process:
    """One process of a run on several ranks, which records on rank 0."""

    def __init__(self, folders: dict[str, Path], folder: Path, ranks: int, **options: Any) -> None:
        settings = {'shuffle': True, 'epoch_size': 100, **options}
        self.loaders: list[StreamingDataLoader] = []
        for rank in range(ranks):
            streams = [
                Stream(local=str(data), name=name, proportion=weight)
                for (name, data), weight in zip(folders.items(), (0.4, 0.6), strict=True)
            ]
            dataset = StreamingDataset(streams=streams, batch_size=BATCH // ranks, **settings)
            self.loaders.append(StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks)))
        self.record = RunRecorder(folder)

    def train(
        self, steps: int, *, first: int = 0, state: dict[str, Any] | None = None, save: int | None = None
    ) -> tuple[dict[int, list[int]], dict[str, Any]]:
        """The ids of each step, and the state after `save` steps of the run."""
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)
        self.record.begin({'': self.loaders[0]}, step=first)
        seen: dict[int, list[int]] = {}
        saved: dict[str, Any] = {}
        while len(seen) < steps:
            for batches in zip(*self.loaders, strict=True):
                self.record.batch_done()
                seen[first + len(seen)] = [ident for batch in batches for ident in batch['id'].tolist()]
                if self.record.step == save:
                    self.record.checkpoint()
                    saved = self.loaders[0].state_dict()
                if len(seen) == steps:
                    break
        return seen, saved


def ids_of(run: RecordedRun, step: int) -> list[int]:
    ids = run.step(step).report.batches[0].ids.tolist()
    return [i if i < SIZES['a'] else i - SIZES['a'] + 1000 for i in ids]
