"""One canonical node's share of one pass over one stream, shuffled: sample numbers at any local positions.

The algorithm, for a node with M positions (a *cell*). It bounds the shards in use at a time, needs O(shards) set-up
and no state between positions:

1. The node's parts of shards are permuted. A part above 1.5 times the mean is split into equal units.
2. K tracks run side by side, as many as py1e has shards open on average: the sum of max(part, block), divided by M and
   rounded up.
   Units go to the first free track, and give one sample to each row. The first unit of each track is drawn in
   proportion to size, from equal distances along the line of units. The track begins a fraction (l + phase) / K of it
   before row 0. So tracks look as if they had run for ever, and begin and end their units at different times.
3. At both ends tracks begin or stop one by one. Few samples of few shards would stand alone there, so the rows are
   folded. Half of the tracks have begun at some row. The rows before it are laid, in reverse, upon the rows after it.
   The end is folded in the same way.
4. The samples of a row are permuted; row after row they are the cell's positions.
5. The o-th sample that the tracks take of a shard is the shard's π(o), π being keyed by pass and shard.

With a block of at least M positions, there is one track, and its M rows are permuted instead.

With tracks a single position can be evaluated. The set of open tracks changes at 4K rows at most. Between these rows
(in a *run*) a position's row and slot are quotient and remainder. Openings all come before closings, because a track
closes only when no unit is left. So the open tracks are the first ones in order of opening or, later, of closing, last
first. The same holds for the tracks of rows that are folded onto a row.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.order.arrays import IntArray
from headrace.order.random.feistel import column_bits, feistel_permute
from headrace.order.random.hashing import KeyArray, derive, hashes, keyed_order


class Rows:
    """A table of int64[columns] rows that grows at its end, each row under an int64 key."""

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

    def find(self, keys: IntArray) -> IntArray:
        """Return the last row whose key is not above, int64[n], for keys int64[n]; the table's keys ascend."""
        rows = self._keys[: self.used].searchsorted(keys, 'right')
        rows -= 1
        return rows

    def keys_at(self, rows: IntArray) -> IntArray:
        return self._keys.take(rows)

    def columns_at(self, rows: IntArray) -> IntArray:
        """Return int64[columns, n], what stands in rows int64[n]."""
        return self._rows.take(rows, axis=0).T

    @property
    def keys(self) -> IntArray:
        """All keys, int64[used]; a view."""
        return self._keys[: self.used]

    @property
    def rows(self) -> IntArray:
        """All rows, int64[used, columns]; a view."""
        return self._rows[: self.used]


ROW_BITS = 40  # a track's units are searched by (track, row) in one int64
ROW_STEP = np.array(0x2545F4914F6CDD1D, np.int64)  # odd
_PHASES = 16
_SLACK = 32  # 1/32 of a track is not rounded up: a single shard below the block shall not double the shards in use


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of shards that a cell consists of, in any fixed order; int64[parts] each, sizes above 0."""

    sizes: IntArray  # Samples of the part.
    skipped: IntArray  # Samples of the shard that belong to cells before this one.
    starts: IntArray  # The shard's first sample, numbered within its stream.
    shard_sizes: IntArray  # Samples of the whole shard.
    bits: IntArray  # `column_bits` of that.
    keys: KeyArray  # Keys of the permutations within shards, of this pass; uint64[parts].


class CellTable:
    """Cells, side by side in a few tables, so that positions of many cells are evaluated by the same array calls.

    Cells are added when they are first needed, and stay. The owner of a table that has grown too long starts a new one.
    """

    __slots__ = ('_cells', '_positions', '_tracks', 'folds', 'runs', 'slots', 'unit_sizes', 'units')

    def __init__(self) -> None:
        self._positions = 0  # of all cells; a cell's positions are numbered on from the cell before
        self._tracks = 0  # of all cells, numbered likewise
        self._cells = Rows(3)  # by number; key: first position; first unit, track and run
        # Columns: position; row; samples of a row; their column bits; key; open tracks of the row; the first of them in
        # slots. A cell that is permuted whole has one row without open tracks.
        self.runs = Rows(7)
        # Columns for each run, where the head folds a row onto row r: tracks of that row; the first of them in slots;
        # that row plus r. The same for the tail, whose slots continue the head's numbers.
        self.folds = Rows(5)
        self.slots = Rows(0)  # key: track; a cell's tracks in order of opening, then in order of closing, last first
        self.units = Rows(5)  # by track and row: row minus samples of the shard before, start, size, column bits, key
        self.unit_sizes = Rows(0)  # key: samples of each unit

    def add(self, parts: Parts, block_size: int, key: int) -> int:
        """Append a cell of at least one part and return its number, counted from 0."""
        order = keyed_order(key, len(parts.sizes))
        sizes = parts.sizes[order]
        total = int(sizes.sum())
        if block_size >= total:
            units, before, num_tracks = sizes, np.zeros_like(sizes), 1
        else:
            owner, before, units = _split(sizes)
            order = order[owner]
            shares = _SLACK * int(np.maximum(sizes, block_size).sum()) - total
            num_tracks = min(len(units), max(1, -(-shares // (_SLACK * total))))
        phase = derive(key, 2)
        first = _first_units(units, num_tracks, phase >> 32)
        order, units, before = order[first], units[first], before[first]
        ages = units[:num_tracks] * (_PHASES * np.arange(num_tracks) + phase % _PHASES) // (_PHASES * num_tracks)
        opening = ages.max() - ages
        track, row = _assign(units, opening)
        places = (track << ROW_BITS) + row
        by_place = places.argsort()
        shards, track, row, units = order[by_place], track[by_place], row[by_place], units[by_place]
        lasts = np.append((track[1:] != track[:-1]).nonzero()[0], len(track) - 1)
        closing = (row + units)[lasts]
        runs = _Runs.of(opening, closing)

        self._cells.append(*(np.array([a]) for a in (self._positions, self.units.used, self._tracks, self.runs.used)))
        self.units.append(
            places[by_place] + (self._tracks << ROW_BITS),
            row - before[by_place] - parts.skipped[shards],
            parts.starts[shards],
            parts.shard_sizes[shards],
            parts.bits[shards],
            parts.keys[shards].view(np.int64),
        )
        self.unit_sizes.append(units)
        positions = self._positions + runs.positions
        slots = self.slots.used + num_tracks * runs.closing
        tracks, samples = runs.tracks, runs.tracks + runs.head_tracks + runs.tail_tracks
        if block_size >= total:
            tracks, samples = np.zeros_like(tracks), np.full_like(samples, total)
        keys = hashes(derive(key, 1), np.arange(len(positions))).view(np.int64)
        self.runs.append(positions, positions, runs.rows, samples, column_bits(samples), keys, tracks, slots)
        used, head, tail = (np.full_like(samples, a) for a in (self.slots.used, 2 * runs.begin - 1, 2 * runs.end - 1))
        self.folds.append(positions, runs.head_tracks, used, head, used + num_tracks - runs.head_tracks, tail)
        self.slots.append(self._tracks + np.argsort(opening, kind='stable'))
        self.slots.append(self._tracks + np.argsort(-closing, kind='stable'))
        self._positions += total
        self._tracks += num_tracks
        return self._cells.used - 1

    def at(self, cells: IntArray, positions: IntArray) -> IntArray:
        """Return sample numbers within the stream, int64[n], of positions int64[n] within cells int64[n]."""
        x = self._cells.keys_at(cells)
        x += positions
        runs = self.runs.find(x)
        begin, row, samples, bits, key, tracks, slot = self.runs.columns_at(runs)
        x -= begin
        rows = x // samples
        x -= rows * samples
        # Keys of neighbouring rows differ by an odd constant; the network's hashes make them independent.
        keys = rows * ROW_STEP
        keys += key
        rows += row
        x = feistel_permute(*(a.view(np.uint64) for a in (x, samples, bits, keys))).view(np.int64)
        folded = (x >= tracks).nonzero()[0]
        x += slot
        if len(folded):
            tracks, rank = tracks[folded], (x - slot)[folded]
            head_tracks, head_slot, head_sum, tail_slot, tail_sum = self.folds.columns_at(runs[folded])
            is_head = rank < tracks + head_tracks
            is_whole = tracks == 0
            x[folded] = np.where(is_whole, head_slot, rank - tracks + np.where(is_head, head_slot, tail_slot))
            rows[folded] = np.where(is_whole, rank, np.where(is_head, head_sum, tail_sum) - rows[folded])

        x = self.slots.keys_at(x)
        x <<= ROW_BITS
        x += rows
        begin, start, size, bits, key = self.units.columns_at(self.units.find(x))
        rows -= begin
        x = feistel_permute(*(a.view(np.uint64) for a in (rows, size, bits, key))).view(np.int64)
        x += start
        return x


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of rows between which nothing opens or closes, of a cell; head and tail are folded onto them."""

    positions: IntArray  # int64[runs]: position of the run's first sample, row after row.
    rows: IntArray  # int64[runs]: its first row.
    tracks: IntArray  # int64[runs]: tracks open in these rows themselves, at least one.
    head_tracks: IntArray  # int64[runs]: tracks open in the rows before `begin` that are folded onto these.
    tail_tracks: IntArray  # int64[runs]: tracks open in the rows from `end` on that are folded onto these.
    closing: NDArray[np.bool_]  # bool[runs]: whether a track has closed before it.
    begin: int  # The first row onto which rows are folded: the k-th before it lies on the k-th from it on.
    end: int  # The row after the last, likewise.

    @classmethod
    def of(cls, opening: IntArray, closing: IntArray) -> _Runs:
        """Make the runs of tracks that open and close at these rows, int64[tracks] each; all open before one closes."""
        opens, closes = np.sort(opening), np.sort(closing)
        num_tracks = len(opens)
        if num_tracks == 1:  # most cells of many streams: nothing is folded
            none, begin, end = np.zeros_like(opens), int(opens[0]), int(closes[0])
            return cls(none, opens, np.ones_like(opens), none, none, none > 0, begin, end)
        half = num_tracks // 2
        # Folded rows need rows to lie on: the last row that is folded is the first row, and the other way round.
        end = max(int(closes[num_tracks - 1 - half]), -(-(int(opens[half]) + int(closes[-1])) // 2))
        begin = min(int(opens[half]), (end + int(opens[0])) // 2)
        edges = np.concatenate([opens, closes, 2 * begin - opens, 2 * end - closes, np.array([begin, end])])
        edges = np.unique(edges[(edges >= begin) & (edges <= end)])
        rows = edges[:-1]
        closed = closes.searchsorted(rows, 'right')
        tracks = opens.searchsorted(rows, 'right') - closed
        head_tracks = opens.searchsorted(2 * begin - 1 - rows, 'right')
        tail_tracks = num_tracks - closes.searchsorted(2 * end - 1 - rows, 'right')
        samples = np.diff(edges) * (tracks + head_tracks + tail_tracks)
        return cls(samples.cumsum() - samples, rows, tracks, head_tracks, tail_tracks, closed > 0, begin, end)


def _split(sizes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Cut parts above 1.5 times the mean into equal units: of each its part, the part's samples before it, its own."""
    limit = 3 * -(-int(sizes.sum()) // len(sizes))
    pieces = -(-2 * sizes // limit)
    owner = np.repeat(np.arange(len(sizes)), pieces)
    piece = np.arange(len(owner)) - (np.cumsum(pieces) - pieces)[owner]
    before = sizes[owner] * piece // pieces[owner]
    return owner, before, sizes[owner] * (piece + 1) // pieces[owner] - before


def _first_units(units: IntArray, num_tracks: int, fraction: int) -> IntArray:
    """Return the order int64[units] that units go to tracks in: first, for each track, one in proportion to its size.

    This is systematic sampling (Madow, 1949): the units at equal distances along the line of all, from `fraction`, of
    32 bits, on. If it hits a large unit twice, the next units of the line take the place.
    """
    ends = np.cumsum(units)
    total = int(ends[-1])
    hits = np.arange(num_tracks) * total // num_tracks + (fraction * total // num_tracks >> 32)
    first = np.unique(ends.searchsorted(hits, 'right'))
    later = np.ones(len(units), np.bool_)
    later[first] = False
    return np.concatenate([first, later.nonzero()[0]])


def _assign(units: IntArray, opening: IntArray) -> tuple[IntArray, IntArray]:
    """Give each unit to the track that is free first, track l unit l at first; return tracks and first rows."""
    tracks = len(opening)
    first_free = opening + units[:tracks]
    if tracks == 1:
        return np.zeros_like(units), np.cumsum(units) - units
    # One int instead of a tuple: the heap is the only loop over units, and this halves its time.
    heap = (first_free * tracks + np.arange(tracks)).tolist()
    heapq.heapify(heap)
    taken: list[int] = []
    for unit in (units[tracks:] * tracks).tolist():
        taken.append(heap[0])
        heapq.heapreplace(heap, heap[0] + unit)
    rows, track = np.divmod(np.array(taken, np.int64), tracks)
    return np.concatenate([np.arange(tracks), track]), np.concatenate([opening, rows])
