"""Which positions of an epoch go to which node, rank and batch: MosaicML Streaming's partitions, by arithmetic.

The n positions are the entries of a matrix with a row for each of C canonical nodes. Columns are dealt one after
another: entry i of that line goes to node i mod P, and entry i of a node to its rank i mod R. Repeats fill up rows that
are short by one, and lines that do not divide evenly. Each entry is computed alone, so no array has the size of an
epoch.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import ConfigError, ResumeError, TopologyError, UnknownNameError
from headrace.order.arrays import IntArray
from headrace.order.config import PARTITIONS

_ALL = slice(None)


class Partition:
    """An epoch's positions, or what is left of them, in rows of a global batch.

    A row holds P·R·B positions, B for each rank: those of node 0, rank 0 come first, then those of its rank 1. In the
    last row, -1 marks the places of ranks that have run out. `num_full_rows` is the number of rows without -1.
    """

    __slots__ = (
        '_batch', '_cyclic', '_drop', '_node_entries', '_nodes', '_padding', '_parts', '_rank_entries', '_ranks',
        '_samples', '_spread', '_width', 'num_full_rows', 'num_rows', 'row_length',
    )  # fmt: skip

    def __init__(
        self,
        num_samples: int,
        num_canonical_nodes: int,
        *,
        nodes: int,
        ranks: int,
        batch_size: int,
        drop: int = 0,
        algorithm: str = 'orig',
        initial_nodes: int | None = None,
        resumes_in_repeats: bool = False,
    ) -> None:
        """Take sizes.

        Args:
            num_samples: n, at least 1.
            num_canonical_nodes: C; the larger of C and P must be a multiple of the smaller.
            nodes: P.
            ranks: R, ranks of a node.
            batch_size: B, samples of a rank's batch.
            drop: entries of the line to drop at its start, rounded down to a multiple of P.
            algorithm: 'orig' or 'relaxed'. Where P does not fit C, relaxed deals the rows that ``initial_nodes`` nodes
                would have got to P nodes.
            initial_nodes: number of nodes that the run began on, if known.
            resumes_in_repeats: whether drop may be anywhere in the entries, also where MosaicML Streaming refuses a
                position that it gave out.

        Raises:
            UnknownNameError: the algorithm does not exist.
            TopologyError: the numbers do not divide as they have to.
            ResumeError: drop is beyond the last entry, and beyond the last sample and a row of one sample per rank.
            ConfigError: the epoch has no samples.
        """
        if algorithm not in PARTITIONS:
            raise UnknownNameError(f'partition_algo must be one of {list(PARTITIONS)}, got {algorithm!r}.')
        if num_samples < 1:
            raise ConfigError(f'an epoch must draw at least 1 sample of every stream, got {num_samples}.')
        if batch_size < 1:
            raise ConfigError(f'batch_size must be at least 1 sample per device, got {batch_size}.')
        devices = nodes * ranks
        parts = num_canonical_nodes
        if max(parts, nodes) % min(parts, nodes):
            if algorithm == 'orig' or initial_nodes is None:
                raise TopologyError(
                    f'num_canonical_nodes must be a multiple of the number of nodes or the reverse, got {parts} '
                    f'canonical nodes on {nodes} nodes. Change num_canonical_nodes; or, to resume, use partition_algo '
                    "'relaxed' with a state that says how many nodes the run began on."
                )
            if devices * batch_size % (initial_nodes * ranks):
                raise TopologyError(
                    f'the global batch size must be a multiple of the {initial_nodes * ranks} ranks of the '
                    f'{initial_nodes} nodes that the run began on, got {devices * batch_size}.'
                )
            if max(parts, initial_nodes) % min(parts, initial_nodes):
                raise TopologyError(
                    f'num_canonical_nodes must be a multiple of the number of nodes that the run began on or the '
                    f'reverse, got {parts} canonical nodes and {initial_nodes} nodes.'
                )
            batch_size = devices * batch_size // (initial_nodes * ranks)
            nodes = initial_nodes
        self._samples, self._parts, self._nodes, self._ranks, self._batch = num_samples, parts, nodes, ranks, batch_size
        self._drop = drop - drop % nodes
        self._width = width = -(-num_samples // parts)
        self._spread = nodes // parts if parts < nodes else 1
        self._padding = -width % self._spread
        self._cyclic = num_samples < parts or num_samples == parts < nodes
        entries = parts * (width + self._padding) if resumes_in_repeats else 0
        if drop >= entries and drop > num_samples + devices - num_samples % devices:
            raise ResumeError(f'a run resumes inside an epoch of {num_samples} samples, got position {drop}.')
        self._node_entries = max(parts * (width + self._padding) - self._drop, 0) // nodes
        self._rank_entries = -(-self._node_entries // ranks)
        self.row_length = nodes * ranks * batch_size
        self.num_rows = -(-self._rank_entries // batch_size)
        self.num_full_rows = self._rank_entries // batch_size

    @property
    def num_entries(self) -> int:
        """Number of entries that are not -1."""
        return self._rank_entries * self._nodes * self._ranks

    def rows(self, numbers: IntArray, columns: slice = _ALL) -> IntArray:
        """Return int64[k, columns], positions or -1, of rows int64[k], or of some of their columns."""
        return self.at(numbers[:, None] * self.row_length + np.arange(self.row_length)[columns])

    def at(self, entries: IntArray) -> IntArray:
        """Return positions or -1 of entries, counted through all rows; int64 of the shape of ``entries``."""
        rows, place = np.divmod(entries, self.row_length)
        nodes, place = np.divmod(place, self._ranks * self._batch)
        ranks, place = np.divmod(place, self._batch)
        place += rows * self._batch
        of_node = place * self._ranks + ranks
        m, short = self._node_entries, -self._node_entries % self._ranks
        beyond = of_node - m
        if m and short and (beyond >= 0).any():
            # Repeats, so that all ranks have the same number: of the line's end, or of all of it where it is short.
            repeats = m - self._ranks - short + 1 + beyond if self._ranks + short - 1 <= m else beyond % m
            of_node = np.where(beyond >= 0, repeats, of_node)
        line = self._drop + of_node * self._nodes + nodes
        return np.where(place < self._rank_entries, self._positions(line), -1)

    def _positions(self, line: IntArray) -> IntArray:
        """Positions of entries of the matrix, column after column."""
        columns, rows = np.divmod(line, self._parts)
        if self._cyclic:
            return (rows * (self._width + self._padding) + columns) % self._samples
        if self._padding:
            # Columns from further left are repeated. Where there are too few, MosaicML Streaming fails; here columns
            # are repeated from the first on.
            end = max(self._width - self._spread + 1, 0)
            begin = max(end - self._padding, 0)
            extra = columns - self._width
            if end - begin == 1:
                repeated = np.full_like(extra, begin)
            elif end - begin == self._padding:
                repeated = begin + extra
            else:
                repeated = extra % self._width
            columns = np.where(extra >= 0, repeated, columns)
        begins = rows * self._samples // self._parts
        ends = (rows + 1) * self._samples // self._parts
        return np.minimum(begins + columns, ends - 1)
