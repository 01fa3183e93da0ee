"""The resume oracle: a state taken after every batch, restored elsewhere, must give the rest of the sequence.

All ranks of a world run in this process, one after another for each batch. No rank ever waits for another. The oracle
records the sample ids of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dataset import StreamingDataLoader
from headrace.order import Topology

__all__ = ['WalkedBatch', 'World', 'check_resume', 'walk']

MakeLoader = Callable[[Topology, int], StreamingDataLoader]
"""(topology, workers) -> a loader for that rank; its device batch size keeps the global batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A number of ranks, nodes and workers."""

    ranks: int = 1
    workers: int = 0
    nodes: int = 1
    replication: int = 1


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """One global batch, and the state after it."""

    epoch: int
    ids: frozenset[int]
    rows: int
    state: dict[str, int | str]


def walk(
    make_loader: MakeLoader,
    world: World,
    *,
    epochs: int = 1,
    state: dict[str, Any] | None = None,
    ids_of: Callable[[Any], Sequence[int]] = lambda batch: batch['id'].tolist(),
) -> Iterator[WalkedBatch]:
    """Iterate a world, from a state if one is given, until `epochs` passes have ended.

    Raises:
        AssertionError: ranks return unequal numbers of batches or rows, or disagree about the state.
    """
    loaders = [
        make_loader(
            Topology(rank=rank, world_size=world.ranks, num_nodes=world.nodes, replication=world.replication),
            world.workers,
        )
        for rank in range(world.ranks)
    ]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(state)
    replicas = range(0, world.ranks, world.replication)
    for _ in range(epochs):
        for batches in zip(*loaders, strict=True):
            ids = [list(ids_of(batch)) for batch in batches]
            for rank, row in enumerate(ids):
                assert row == ids[rank // world.replication * world.replication], 'replicated ranks got other samples'
            assert len({len(row) for row in ids}) == 1, f'ranks got unequal rows: {[len(row) for row in ids]}'
            states = [loader.state_dict() for loader in loaders]
            assert all(other == states[0] for other in states), f'ranks disagree about the state: {states}'
            handed_out = [sample for rank in replicas for sample in ids[rank]]
            yield WalkedBatch(int(states[0]['epoch']), frozenset(handed_out), len(handed_out), states[0])


def check_resume(
    make_loader: MakeLoader, worlds: Sequence[World], *, epochs: int = 2, every: int = 1, horizon: int | None = None
) -> int:
    """Check every state of a run in the first world against the run's rest, in the other worlds in turn.

    Args:
        make_loader: makes one rank's loader.
        worlds: the world that runs, then those that resume.
        epochs: passes of the run.
        every: the number of batches between two checked states.
        horizon: the number of batches to compare after each resume; None: all.

    Returns:
        The number of states that were checked.

    Raises:
        AssertionError: a resumed run differs from the uninterrupted one, with both sequences' first difference.
    """
    run = list(walk(make_loader, worlds[0], epochs=epochs))
    checked = 0
    for at in range(0, len(run), every):
        world = worlds[1:][checked % (len(worlds) - 1)] if len(worlds) > 1 else worlds[0]
        rest = run[at + 1 :]
        # A state at the end of an epoch continues with the next one, so one pass fewer remains.
        passes = len({step.epoch for step in rest})
        resumed = walk(make_loader, world, epochs=passes, state=run[at].state) if passes else iter(())
        for number, (was, now) in enumerate(zip(rest, resumed, strict=horizon is None)):
            assert (was.epoch, was.ids) == (now.epoch, now.ids), (
                f'resumed after batch {at} on {world}: batch {number} after it holds {sorted(now.ids)} '
                f'of epoch {now.epoch}, but held {sorted(was.ids)} of epoch {was.epoch} without interruption'
            )
            if horizon is not None and number + 1 >= horizon:
                break
        checked += 1
    return checked
