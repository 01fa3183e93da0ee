"""Which samples make up a global batch, and where each of them comes from; without reading any data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.order.locate import SampleMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.order.mixture import IntArray
    from headrace.order.plan import BatchPlan

__all__ = ['BatchExplanation', 'explain_batch']


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
        columns = ('ranks', 'rows', 'positions', 'ids', 'streams', 'shards', 'shard_rows', 'is_padding')
        given = {name: getattr(self, name)[where] for name in columns}
        return BatchExplanation(
            epoch=self.epoch, number=self.number, end=self.end, stream_names=self.stream_names, **given
        )

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
    ranks, rows, positions, padding = [], [], [], []
    for rank in range(0, topology.world_size, topology.replication):
        of_rank = plan.of_rank(rank)
        own = of_rank.positions(k) if k < of_rank.num_batches or rank == topology.rank else np.zeros(0, np.int64)
        positions.append(own)
        ranks.append(np.full(len(own), rank))
        rows.append(np.arange(len(own)))
        padding.append(np.arange(len(own)) >= (of_rank.own_samples(k) if len(own) else 0))
    all_positions = np.concatenate(positions)
    ids = plan.order.at(all_positions)
    shards, shard_rows = sample_map.locate(ids)
    streams = mixture.shard_offsets.searchsorted(shards, 'right') - 1
    return BatchExplanation(
        epoch=plan.order.epoch,
        number=k,
        end=plan.end(k),
        stream_names=tuple(stream.name for stream in mixture.streams),
        ranks=np.concatenate(ranks),
        rows=np.concatenate(rows),
        positions=all_positions,
        ids=ids,
        streams=streams,
        shards=shards - mixture.shard_offsets[streams],
        shard_rows=shard_rows,
        is_padding=np.concatenate(padding),
    )
