"""Which samples make up a global batch, and where each of them comes from; without reading any data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.explanation import BatchExplanation
from headrace.order.sample_map import SampleMap

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.order.arrays import IntArray
    from headrace.order.protocols import BatchPlan


def _rows_of(plan: BatchPlan, k: int) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]:
    """Ranks, rows, positions, int64[rows], and which are padding, bool[rows], of batch k on all replicas."""
    topology = plan.topology
    ranks = range(0, topology.world_size, topology.replication)
    plans = [plan.of_rank(rank) for rank in ranks]
    positions = [each.positions(k) for each in plans]
    rows = [np.arange(len(of_rank)) for of_rank in positions]
    return (
        np.repeat(np.array(ranks), [len(of_rank) for of_rank in positions]),
        np.concatenate(rows),
        np.concatenate(positions),
        np.concatenate([row >= each.own_samples(k) for row, each in zip(rows, plans, strict=True)]),
    )


def explain_batch(plan: BatchPlan, k: int, sample_map: SampleMap | None = None) -> BatchExplanation:
    """Explain batch k of a plan, for all ranks.

    Args:
        plan: of any rank of the topology.
        k: in [0, num_batches).
        sample_map: where the samples of ids are; None: as if each stream offered all of its shards' rows.

    Raises:
        IndexError: there is no such batch, or it is from before the mixture took over.
    """
    mixture = plan.order.mixture
    ranks, rows, positions, is_padding = _rows_of(plan, k)
    ids = plan.order.at(positions)
    shards, shard_rows = (sample_map or SampleMap.of(mixture)).locate(ids)
    streams = mixture.shard_offsets.searchsorted(shards, 'right') - 1
    return BatchExplanation(
        epoch=plan.order.epoch,
        number=k,
        end=plan.end(k),
        stream_names=tuple(stream.name for stream in mixture.streams),
        topology=plan.topology,
        ranks=ranks,
        rows=rows,
        positions=positions,
        ids=ids,
        streams=streams,
        shards=shards - mixture.shard_offsets[streams],
        shard_rows=shard_rows,
        is_padding=is_padding,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleUse:
    """Where a sample is handed out."""

    epoch: int
    position: int
    """In the epoch's sequence."""
    batch: int
    """Which batch of its plan it is in."""
    rank: int
    """The rank that gets it; with replication, the first of those that do."""
    row: int
    """The row of that rank's batch."""


def next_use(
    plan_of: Callable[[int], BatchPlan], sample_id: int, *, epoch: int = 0, batch: int = 0, epochs: int = 1000
) -> SampleUse | None:
    """Say when a sample is seen next.

    Args:
        plan_of: gives the plan of an epoch, of any rank.
        sample_id: global sample id.
        epoch: where to begin.
        batch: which of that epoch's batches to begin with.
        epochs: how many epochs to look through.

    Returns:
        The first use, without padding, or None if the sample is not handed out in those epochs.

    Raises:
        IndexError: there is no such sample.
    """
    for number in range(epoch, epoch + epochs):
        plan = plan_of(number)
        found = plan.find(sample_id, batch if number == epoch else 0)
        if found is not None:
            k, position = found
            ranks, rows, positions, is_padding = _rows_of(plan, k)
            i = int(((positions == position) & ~is_padding).argmax())
            return SampleUse(epoch=number, position=position, batch=k, rank=int(ranks[i]), row=int(rows[i]))
    return None
