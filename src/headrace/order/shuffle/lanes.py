"""One canonical node's share of one pass over one stream, shuffled: sample numbers at any local positions.

The algorithm, for a node with M positions (a *cell*). It bounds the shards in use at a time, needs O(shards) set-up
and no state between positions:

1. The node's parts of shards are permuted. A part above 1.5 times the mean is split into equal units.
2. K lanes, about block size / mean part, run side by side; lane l opens at row l·mean/K, so that lanes begin and end
   their units at different times. Units go in order to the first free lane. A unit gives one sample to each row.
3. Read row after row, the samples form a line of M. The line is cut into bands, and the bands into chunks; each chunk
   is permuted. The head, the rows before mean/2 where few lanes are open, and the tail, all that follows the last
   unit's begin, are a chunk each; between them chunks are short, so that they need hardly more shards than a row.
4. The o-th sample that the lanes take of a shard is the shard's π(o), π being keyed by pass and shard.

With a block of at least M positions, the whole node is one chunk.

Lanes exist to be evaluated at a point: the number of open lanes changes at no more than 2K rows, and between them a
position's row and lane are quotient and remainder. Openings all come before closings, because a lane closes only when
no unit is left: open lanes are always the first ones by number or, later, by time of closing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.hashing import KeyArray, derive, hashes, keyed_order
from headrace.order.permute import column_bits, permute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.order.mixture import IntArray

__all__ = ['CellTable', 'Parts']

_MIN_CHUNK = 4096
_ROWS_PER_CHUNK = 16
_ROW_BITS = 40  # a lane's units are searched by (lane, row) in one int64
_CHUNK_STEP = np.array(0x2545F4914F6CDD1D, np.int64)  # odd


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of shards that a cell consists of, in any fixed order; int64[parts] each, sizes above 0."""

    sizes: IntArray
    """Samples of the part."""
    skipped: IntArray
    """Samples of the shard that belong to cells before this one."""
    starts: IntArray
    """The shard's first sample, numbered within its stream."""
    shard_sizes: IntArray
    """Samples of the whole shard."""
    bits: IntArray
    """`column_bits` of that."""
    keys: KeyArray
    """Keys of the permutations within shards, of this pass; uint64[parts]."""


class _Rows:
    """A table of int64[columns] rows that grows at its end, each row under an int64 key, keys ascending."""

    __slots__ = ('_keys', '_rows', 'used')

    def __init__(self, columns: int) -> None:
        self.used = 0
        self._keys = np.zeros(64, np.int64)
        self._rows = np.zeros((64, columns), np.int64)

    def append(self, keys: IntArray, *columns: IntArray) -> None:
        """Add rows, one array int64[n] a column."""
        end = self.used + len(keys)
        if end > len(self._keys):
            room = max(end, 2 * len(self._keys)) - self.used
            self._keys = np.concatenate([self._keys[: self.used], np.zeros(room, np.int64)])
            empty = np.zeros((room, self._rows.shape[1]), np.int64)
            self._rows = np.concatenate([self._rows[: self.used], empty])
        self._keys[self.used : end] = keys
        for i, column in enumerate(columns):
            self._rows[self.used : end, i] = column
        self.used = end

    def keys_at(self, rows: IntArray) -> IntArray:
        """Return the keys int64[n] of rows int64[n]."""
        return self._keys.take(rows)

    def find(self, keys: IntArray) -> IntArray:
        """Return int64[columns, n]: the last row whose key is not above, for each of keys int64[n]."""
        found = self._keys[: self.used].searchsorted(keys, 'right')
        found -= 1
        return self._rows.take(found, axis=0).T


class CellTable:
    """Cells, side by side in a few tables, so that positions of many cells are evaluated by the same array calls.

    Cells are added when they are first needed and stay; the owner starts a new table when this one has grown too long.
    """

    __slots__ = ('_bands', '_cells', '_lanes', '_positions', '_runs', '_slots', '_units')

    def __init__(self) -> None:
        self._positions = 0  # of all cells; a cell's positions are numbered on from the cell before
        self._lanes = 0  # of all cells, numbered likewise
        self._cells = _Rows(0)  # by number; key: first position
        self._bands = _Rows(4)  # by position: its own, chunk size, column bits of that, key
        self._runs = _Rows(4)  # by position: its own, row, number of open lanes, the first of them in _slots
        self._slots = _Rows(0)  # key: lane; a cell's lanes in order of opening, then in order of closing, last first
        self._units = _Rows(5)  # by lane and row: row minus samples of the shard before, start, size, column bits, key

    @property
    def units(self) -> int:
        """Number of units in the table, a measure of its memory: about 50 bytes each, and twice that in growing."""
        return self._units.used

    def add(self, parts: Parts, block_size: int, key: int) -> int:
        """Append a cell of at least one part and return its number, counted from 0."""
        order = keyed_order(key, len(parts.sizes))
        sizes = parts.sizes[order]
        total = int(sizes.sum())
        mean = -(-total // len(sizes))
        if 2 * int(sizes.max()) > 3 * mean:
            pieces = np.where(2 * sizes > 3 * mean, -(-sizes // mean), 1)
            owner = np.repeat(np.arange(len(sizes)), pieces)
            piece = np.arange(len(owner)) - (np.cumsum(pieces) - pieces)[owner]
            before = sizes[owner] * piece // pieces[owner]
            units = sizes[owner] * (piece + 1) // pieces[owner] - before
            order = order[owner]
        else:
            units, before = sizes, np.zeros_like(sizes)

        num_lanes = 1 if block_size >= total else min(len(units), max(1, block_size // mean))
        lane, row = _assign(units, np.arange(num_lanes, dtype=np.int64) * mean // num_lanes)
        places = (lane << _ROW_BITS) + row
        by_place = places.argsort()
        shards, lane, row = order[by_place], lane[by_place], row[by_place]
        lasts = np.append((lane[1:] != lane[:-1]).nonzero()[0], len(lane) - 1)
        closing = (row + units[by_place])[lasts]
        runs = _Runs.of(np.arange(len(lasts)) * mean // num_lanes, closing)
        self._units.append(
            places[by_place] + (self._lanes << _ROW_BITS),
            row - before[by_place] - parts.skipped[shards],
            parts.starts[shards],
            parts.shard_sizes[shards],
            parts.bits[shards],
            parts.keys[shards].view(np.int64),
        )
        positions = self._positions + runs.positions
        first_slots = self._slots.used + len(lasts) * runs.closing
        self._runs.append(positions, positions, runs.rows, runs.lanes, first_slots)
        self._slots.append(self._lanes + np.arange(len(lasts)))
        self._slots.append(self._lanes + np.argsort(-closing, kind='stable'))

        begins, chunks = _bands(runs, total, mean // 2, int(closing.min()), block_size)
        keys = hashes(derive(key, 1), np.arange(len(begins))).view(np.int64)
        positions = self._positions + begins
        self._bands.append(positions, positions, chunks, column_bits(chunks), keys)

        self._cells.append(np.array([self._positions]))
        self._positions += total
        self._lanes += len(lasts)
        return self._cells.used - 1

    def at(self, cells: IntArray, positions: IntArray) -> IntArray:
        """Return sample numbers within the stream, int64[n].

        Args:
            cells: int64[n], numbers of cells.
            positions: int64[n], positions within those cells; below their numbers of positions.
        """
        x = self._cells.keys_at(cells)
        x += positions
        begin, size, bits, key = self._bands.find(x)
        x -= begin
        chunk = x // size
        first = chunk * size
        x -= first
        # Keys of neighbouring chunks differ by an odd constant; the network's hashes make them independent.
        chunk *= _CHUNK_STEP
        chunk += key
        x = permute(*(a.view(np.uint64) for a in (x, size, bits, chunk))).view(np.int64)
        x += first
        x += begin

        begin, row, lanes, slot = self._runs.find(x)
        x -= begin
        rows = x // lanes
        x -= rows * lanes
        x += slot
        rows += row

        x = self._slots.keys_at(x)
        x <<= _ROW_BITS
        x += rows
        begin, start, size, bits, key = self._units.find(x)
        rows -= begin
        x = permute(*(a.view(np.uint64) for a in (rows, size, bits, key))).view(np.int64)
        x += start
        return x


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of rows between which lanes open or close, of a cell."""

    positions: IntArray
    """int64[runs]: position of the run's first sample, row after row."""
    rows: IntArray
    """int64[runs]: its first row."""
    lanes: IntArray
    """int64[runs]: lanes open in it, at least one."""
    closing: NDArray[np.bool_]
    """bool[runs]: whether a lane has closed before it."""

    @classmethod
    def of(cls, opening: IntArray, closing: IntArray) -> _Runs:
        """Make the runs of lanes that open and close at these rows; the first opens at row 0."""
        ends = np.sort(closing)
        rows = np.sort(np.concatenate([opening, ends]))
        rows = rows[np.append(True, rows[1:] != rows[:-1])]
        closed = ends.searchsorted(rows, 'right')
        lanes = opening.searchsorted(rows, 'right') - closed
        samples = (rows[1:] - rows[:-1]) * lanes[:-1]
        return cls(samples.cumsum() - samples, rows[:-1], lanes[:-1], closed[:-1] > 0)

    def position(self, row: int) -> int:
        """Return the position of the first sample in a row that some lane is open in."""
        i = int(self.rows.searchsorted(row, 'right')) - 1
        return int(self.positions[i] + (row - self.rows[i]) * self.lanes[i])


def _assign(units: IntArray, opening: IntArray) -> tuple[IntArray, IntArray]:
    """Give each unit in turn to the lane that is free first, the lowest of several; return lanes and first rows."""
    if len(opening) == 1:
        return np.zeros_like(units), np.cumsum(units) - units
    lanes = len(opening)
    # One int instead of a tuple: the heap is the only loop over units, and this halves its time.
    heap = [int(row) * lanes + lane for lane, row in enumerate(opening)]
    taken: list[int] = []
    for unit in (units * lanes).tolist():
        taken.append(heap[0])
        heapq.heapreplace(heap, heap[0] + unit)
    rows, lane = np.divmod(np.array(taken, np.int64), lanes)
    return lane, rows


def _bands(runs: _Runs, total: int, head_rows: int, tail_row: int, block_size: int) -> tuple[IntArray, IntArray]:
    """Return where bands of chunks of equal size begin, and those sizes; int64[bands] each, at most four."""
    head, tail = runs.position(head_rows), runs.position(tail_row)
    chunk = min(block_size, max(_MIN_CHUNK, _ROWS_PER_CHUNK * int(runs.lanes.max())))
    if block_size >= total or tail <= head:
        bands = [(0, total)]
    elif tail - head < chunk:
        bands = [(0, head), (head, total - head)]
    else:
        # The last chunk takes the remainder, which alone might be too short to be mixed with anything.
        last = head + ((tail - head) // chunk - 1) * chunk
        bands = [(0, head), (head, chunk), (last, tail - last), (tail, total - tail)]
        if last == head:
            del bands[1]
    begins, sizes = np.array([band for band in bands if band[1]], np.int64).T
    return begins, sizes
