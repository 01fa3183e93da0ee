"""Which samples make up a global batch, and where each of them comes from; without reading any data."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.order.locate import SampleMap

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.order.mixture import IntArray
    from headrace.order.plan import BatchPlan

__all__ = ['BatchExplanation', 'SampleUse', 'explain_batch', 'next_use']


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchExplanation:
    """The rows of one global batch, replica after replica; arrays are int64[rows]."""

    epoch: int
    number: int
    """Which batch of its plan it is, counted from 0."""
    end: int
    """The position of the epoch's sequence after it, which a checkpoint would say."""
    stream_names: tuple[str, ...]
    ranks: IntArray
    """The rank that gets a row; with replication, the first of those that do."""
    rows: IntArray
    """The row of that rank's batch."""
    positions: IntArray
    """Where in the epoch's sequence."""
    ids: IntArray
    """The global sample id: `dataset[id]` reads it."""
    streams: IntArray
    """Number of the stream."""
    shards: IntArray
    """Number of the shard within the stream."""
    shard_rows: IntArray
    """The sample's place in that shard."""
    is_padding: NDArray[np.bool_]
    """bool[rows]: whether the row only fills up, so that ranks have equally many."""

    def stream_counts(self) -> dict[str, int]:
        """Rows of each stream, padding left out."""
        counts = np.bincount(self.streams[~self.is_padding], minlength=len(self.stream_names))
        return dict(zip(self.stream_names, counts.tolist(), strict=True))

    def of_rank(self, rank: int) -> BatchExplanation:
        """The rows of one rank only: of the replica that it belongs to."""
        first = self.ranks[self.ranks <= rank].max(initial=0)
        return self._taken(self.ranks == first)

    def _taken(self, where: NDArray[np.bool_]) -> BatchExplanation:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: column[where] for name, column in columns.items() if isinstance(column, np.ndarray)}
        return replace(self, **arrays)  # pyright: ignore[reportArgumentType]

    def to_json(self) -> dict[str, Any]:
        """Plain types: the batch, and a list of its rows."""
        columns = {
            'rank': self.ranks, 'row': self.rows, 'position': self.positions, 'id': self.ids,
            'stream': np.array(self.stream_names)[self.streams], 'shard': self.shards,
            'shard_row': self.shard_rows, 'is_padding': self.is_padding,
        }  # fmt: skip
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in values]
        return {'epoch': self.epoch, 'batch': self.number, 'end': self.end, 'rows': rows}

    def __str__(self) -> str:
        header = ('rank', 'row', 'position', 'stream', 'shard', 'row of shard', 'id')
        lines = [
            (*map(str, numbers[:3]), self.stream_names[numbers[3]], *map(str, numbers[4:7]), '  padding' * numbers[7])
            for numbers in zip(
                *(
                    column.tolist()
                    for column in (
                        self.ranks, self.rows, self.positions, self.streams, self.shards, self.shard_rows, self.ids,
                        self.is_padding,
                    )
                ),
                strict=True,
            )
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(header, *(line[:7] for line in lines), strict=True)]
        texts = ['  '.join(text.rjust(width) for text, width in zip(header, widths, strict=True))]
        for line in lines:
            cells = (text.rjust(width) for text, width in zip(line[:7], widths, strict=True))
            texts.append('  '.join(cells) + line[7])
        return '\n'.join(texts)


def explain_batch(plan: BatchPlan, k: int, sample_map: SampleMap | None = None) -> BatchExplanation:
    """Explain batch k of a plan, for all ranks.

    Args:
        plan: of any rank of the topology.
        k: in [0, num_batches).
        sample_map: where the samples of ids are; None: as if each stream offered all of its shards' rows.

    Raises:
        IndexError: there is no such batch.
    """
    mixture, topology = plan.order.mixture, plan.topology
    sample_map = sample_map or SampleMap.of(mixture)
    plans = {rank: plan.of_rank(rank) for rank in range(0, topology.world_size, topology.replication)}
    by_rank = {rank: each.positions(k) for rank, each in plans.items()}
    rows = [np.arange(len(positions)) for positions in by_rank.values()]
    padding = [row >= each.own_samples(k) for row, each in zip(rows, plans.values(), strict=True)]
    all_positions = np.concatenate([*by_rank.values()])
    ids = plan.order.at(all_positions)
    shards, shard_rows = sample_map.locate(ids)
    streams = mixture.shard_offsets.searchsorted(shards, 'right') - 1
    return BatchExplanation(
        epoch=plan.order.epoch,
        number=k,
        end=plan.end(k),
        stream_names=tuple(stream.name for stream in mixture.streams),
        ranks=np.repeat([*by_rank], [len(positions) for positions in by_rank.values()]),
        rows=np.concatenate(rows),
        positions=all_positions,
        ids=ids,
        streams=streams,
        shards=shards - mixture.shard_offsets[streams],
        shard_rows=shard_rows,
        is_padding=np.concatenate(padding),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleUse:
    """Where a sample is handed out."""

    epoch: int
    position: int
    """In the epoch's sequence."""
    batch: int
    """Which batch of the whole epoch it is in."""
    rank: int
    """The rank that gets it; with replication, the first of those that do."""
    row: int
    """The row of that rank's batch."""


def next_use(
    plan_of: Callable[[int], BatchPlan], sample_id: int, *, epoch: int = 0, position: int = 0, epochs: int = 1000
) -> SampleUse | None:
    """Say when a sample is seen next.

    Args:
        plan_of: gives the plan of a whole epoch, of any rank.
        sample_id: global sample id.
        epoch: where to begin.
        position: of that epoch; uses before it do not count. A compatible order's positions do not follow the batches:
            there all uses in that epoch count.
        epochs: how many epochs to look through.

    Returns:
        The use, or None if the sample is not handed out in those epochs.

    Raises:
        IndexError: there is no such sample.
    """
    for number in range(epoch, epoch + epochs):
        plan = plan_of(number)
        uses: list[SampleUse] = []
        for at in plan.order.find(sample_id):
            found = _use_of(plan, at) if number > epoch or at >= position or not _is_one_sequence(plan) else None
            uses += [found] if found is not None else []
            # Passes follow one another, so that the pass after the first one found is early enough.
            if len(uses) == 2 and _is_one_sequence(plan):
                break
        if uses:
            return min(uses, key=lambda use: use.batch)
    return None


def _is_one_sequence(plan: BatchPlan) -> bool:
    """Whether batches follow positions."""
    return plan.num_batches < 2 or int(plan.global_positions(0).max()) < int(plan.global_positions(1).min())


def _use_of(plan: BatchPlan, position: int) -> SampleUse | None:
    """Where a position is handed out; None if it is left out or dropped."""
    batches = range(plan.num_batches)
    if _is_one_sequence(plan):
        k = bisect.bisect_right(batches, position, key=plan.end)
        batches = batches[k : k + 1]
    for k in batches:
        if position in plan.global_positions(k):
            explained = plan.explain(k)
            i = int(((explained.positions == position) & ~explained.is_padding).nonzero()[0][0])
            return SampleUse(
                epoch=plan.order.epoch,
                position=position,
                batch=k,
                rank=int(explained.ranks[i]),
                row=int(explained.rows[i]),
            )
    return None
