"""The rows of a global batch and where each of them comes from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.order.arrays import IntArray
from headrace.order.topology import Topology

_NAMED_SHARDS = 4  # in a line of a summary; the rows name all


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchExplanation:
    """The rows of one global batch, replica after replica; arrays have an entry for each row."""

    epoch: int
    number: int
    """Which batch of its plan it is, counted from 0."""
    end: int
    """The position of the epoch's sequence after it, which a checkpoint would say."""
    stream_names: tuple[str, ...]
    topology: Topology
    """The ranks that it is dealt to; which of them this is makes no difference."""
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
    """Number of the shard in the stream's index."""
    shard_rows: IntArray
    """The sample's place in that shard, as it is stored."""
    is_padding: NDArray[np.bool_]
    """bool[rows]: whether the row only fills up, so that ranks have equally many."""
    files: NDArray[np.str_] | None = None
    """The shard's file, where that is known."""
    is_erased: NDArray[np.bool_] | None = None
    """bool[rows]: whether the sample was erased. None if none was, or if that is not known."""

    @property
    def counted(self) -> str:
        """The unit of `stream_counts`: 'samples'; with packing, 'tokens'."""
        return 'samples'

    @property
    def position_unit(self) -> str:
        """The unit of positions: 'samples'; with packing, 'sequences'."""
        return 'samples'

    def stream_counts(self) -> dict[str, int]:
        """Rows of each stream, without padding; with packing, tokens."""
        counts = np.bincount(self.streams[~self.is_padding], minlength=len(self.stream_names))
        return dict(zip(self.stream_names, counts.tolist(), strict=True))

    def of_rank(self, rank: int) -> BatchExplanation:
        """The rows of one rank only.

        Raises:
            TopologyError: the rank does not exist.
        """
        topology = replace(self.topology, rank=rank)
        where = self.ranks == topology.replica * topology.replication
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays: dict[str, Any] = {k: column[where] for k, column in columns.items() if isinstance(column, np.ndarray)}
        return replace(self, **arrays)

    def columns(self) -> dict[str, list[Any]]:
        """The facts of each row, by name, as plain types."""
        columns: dict[str, NDArray[Any]] = {
            'rank': self.ranks,
            'row': self.rows,
            'position': self.positions,
            'stream': np.array(self.stream_names)[self.streams],
            'shard': self.shards,
        }
        if self.files is not None:
            columns['file'] = self.files
        columns |= {'shard_row': self.shard_rows, 'id': self.ids, 'is_padding': self.is_padding}
        if self.is_erased is not None:
            columns['is_erased'] = self.is_erased
        return {name: column.tolist() for name, column in columns.items()}

    def summary(self) -> list[str]:
        """By stream, its rows without padding, and their shards' files, if they are few."""
        columns = self.columns()
        files = columns.get('file', columns['shard'])
        rows = zip(columns['stream'], columns['shard'], files, columns['is_padding'], strict=True)
        counts = Counter((stream, shard, str(file)) for stream, shard, file, is_padding in rows if not is_padding)
        shards: dict[str, dict[str, int]] = {}
        for (stream, _, file), count in sorted(counts.items()):
            shards.setdefault(stream, {})[file] = count
        lines: list[str] = []
        for name, of_stream in shards.items():
            named = ', '.join(f'{file} {count}' for file, count in of_stream.items())
            where = f': {named}' if len(of_stream) <= _NAMED_SHARDS else f', of {len(of_stream)} shards'
            lines.append(f'{name} {sum(of_stream.values())}{where}')
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain types: the batch, and a list of its rows."""
        columns = self.columns()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {'epoch': self.epoch, 'batch': self.number, 'end': self.end, 'rows': rows}

    def __str__(self) -> str:
        columns = self.columns()
        is_padding = columns.pop('is_padding')
        is_erased = columns.pop('is_erased', [False] * len(is_padding))
        cells = [[name, *map(str, column)] for name, column in columns.items()]
        widths = [max(map(len, column)) for column in cells]
        lines = ['  '.join(map(str.rjust, line, widths)) for line in zip(*cells, strict=True)]
        notes = ('', *('  padding' * a + '  erased' * b for a, b in zip(is_padding, is_erased, strict=True)))
        return '\n'.join(map(str.__add__, lines, notes))
