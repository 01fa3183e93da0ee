"""One canonical node's share of one pass over one stream, shuffled: sample numbers at any local positions, and back.

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
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.native.growing_table import Rows
from headrace.order.random.feistel import column_bits, feistel_permute, feistel_unpermute
from headrace.order.random.hashing import KeyArray, derive, hashes, keyed_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.order.arrays import IntArray

__all__ = ['CellTable', 'Parts']

_ROW_BITS = 40  # a track's units are searched by (track, row) in one int64
_ROW_MASK = (1 << _ROW_BITS) - 1
_ROW_STEP = np.array(0x2545F4914F6CDD1D, np.int64)  # odd
_PHASES = 16
_SLACK = 32  # 1/32 of a track is not rounded up: a single shard below the block shall not double the shards in use


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


class CellTable:
    """Cells, side by side in a few tables, so that positions of many cells are evaluated by the same array calls.

    Cells are added when they are first needed and stay; the owner starts a new table when this one has grown too long.
    """

    __slots__ = ('_cells', '_folds', '_indexes', '_positions', '_runs', '_sizes', '_slots', '_tracks', '_units')

    def __init__(self) -> None:
        self._positions = 0  # of all cells; a cell's positions are numbered on from the cell before
        self._tracks = 0  # of all cells, numbered likewise
        self._cells = Rows(3)  # by number; key: first position; first unit, track and run
        # Columns: position; row; samples of a row; their column bits; key; open tracks of the row; the first of them in
        # _slots. A cell that is permuted whole has one row without open tracks.
        self._runs = Rows(7)
        # Columns for each run, where the head folds a row onto row r: tracks of that row; the first of them in _slots;
        # that row plus r. The same for the tail, whose slots continue the head's numbers.
        self._folds = Rows(5)
        self._slots = Rows(0)  # key: track; a cell's tracks in order of opening, then in order of closing, last first
        self._units = Rows(5)  # by track and row: row minus samples of the shard before, start, size, column bits, key
        self._sizes = Rows(0)  # key: samples of each unit
        self._indexes: dict[int, _Index] = {}

    @property
    def units(self) -> int:
        """Number of units in the table, a measure of its memory: about 60 bytes each, and twice that in growing."""
        return self._units.used

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
        places = (track << _ROW_BITS) + row
        by_place = places.argsort()
        shards, track, row, units = order[by_place], track[by_place], row[by_place], units[by_place]
        lasts = np.append((track[1:] != track[:-1]).nonzero()[0], len(track) - 1)
        closing = (row + units)[lasts]
        runs = _Runs.of(opening, closing)

        self._cells.append(*(np.array([a]) for a in (self._positions, self._units.used, self._tracks, self._runs.used)))
        self._units.append(
            places[by_place] + (self._tracks << _ROW_BITS),
            row - before[by_place] - parts.skipped[shards],
            parts.starts[shards],
            parts.shard_sizes[shards],
            parts.bits[shards],
            parts.keys[shards].view(np.int64),
        )
        self._sizes.append(units)
        positions = self._positions + runs.positions
        slots = self._slots.used + num_tracks * runs.closing
        tracks, samples = runs.tracks, runs.tracks + runs.head_tracks + runs.tail_tracks
        if block_size >= total:
            tracks, samples = np.zeros_like(tracks), np.full_like(samples, total)
        keys = hashes(derive(key, 1), np.arange(len(positions))).view(np.int64)
        self._runs.append(positions, positions, runs.rows, samples, column_bits(samples), keys, tracks, slots)
        used, head, tail = (np.full_like(samples, a) for a in (self._slots.used, 2 * runs.begin - 1, 2 * runs.end - 1))
        self._folds.append(positions, runs.head_tracks, used, head, used + num_tracks - runs.head_tracks, tail)
        self._slots.append(self._tracks + np.argsort(opening, kind='stable'))
        self._slots.append(self._tracks + np.argsort(-closing, kind='stable'))
        self._positions += total
        self._tracks += num_tracks
        return self._cells.used - 1

    def at(self, cells: IntArray, positions: IntArray) -> IntArray:
        """Return sample numbers within the stream, int64[n].

        Args:
            cells: int64[n], numbers of cells.
            positions: int64[n], positions within those cells; below their numbers of positions.
        """
        x = self._cells.keys_at(cells)
        x += positions
        runs = self._runs.find(x)
        begin, row, samples, bits, key, tracks, slot = self._runs.columns_at(runs)
        x -= begin
        rows = x // samples
        x -= rows * samples
        # Keys of neighbouring rows differ by an odd constant; the network's hashes make them independent.
        keys = rows * _ROW_STEP
        keys += key
        rows += row
        x = feistel_permute(*(a.view(np.uint64) for a in (x, samples, bits, keys))).view(np.int64)
        folded = (x >= tracks).nonzero()[0]
        x += slot
        if len(folded):
            tracks, rank = tracks[folded], (x - slot)[folded]
            head_tracks, head_slot, head_sum, tail_slot, tail_sum = self._folds.columns_at(runs[folded])
            is_head = rank < tracks + head_tracks
            is_whole = tracks == 0
            x[folded] = np.where(is_whole, head_slot, rank - tracks + np.where(is_head, head_slot, tail_slot))
            rows[folded] = np.where(is_whole, rank, np.where(is_head, head_sum, tail_sum) - rows[folded])

        x = self._slots.keys_at(x)
        x <<= _ROW_BITS
        x += rows
        begin, start, size, bits, key = self._units.columns_at(self._units.find(x))
        rows -= begin
        x = feistel_permute(*(a.view(np.uint64) for a in (rows, size, bits, key))).view(np.int64)
        x += start
        return x

    def find(self, cells: IntArray, samples: IntArray) -> IntArray:
        """Return the positions within cells at which samples stand, int64[n]; -1 where a sample is not the cell's.

        The inverse of `at`. A cell's first call sorts its units, and keeps 24 bytes a unit and 16 a track.

        Args:
            cells: int64[n], numbers of cells.
            samples: int64[n], sample numbers within the stream, of any value.
        """
        positions = np.empty_like(samples)
        for cell in np.unique(cells).tolist():
            where = (cells == cell).nonzero()[0]
            if cell not in self._indexes:
                self._indexes[cell] = self._index(cell)
            positions[where] = self._find(self._indexes[cell], samples[where])
        return positions

    def _index(self, cell: int) -> _Index:
        ends = self._units.used, self._tracks, self._runs.used
        begins = self._cells.rows_between(cell, cell + 1)[0].tolist()
        if cell + 1 < self._cells.used:
            ends = self._cells.rows_between(cell + 1, cell + 2)[0].tolist()
        (first_unit, first_track, first_run), (end_unit, end_track, end_run) = begins, ends
        rows = self._units.keys_between(first_unit, end_unit) & _ROW_MASK
        units = self._units.rows_between(first_unit, end_unit)
        draws = rows - units[:, 0]
        firsts = units[:, 1] + draws
        order = np.argsort(firsts)
        ranks = np.empty((2, end_track - first_track), np.int64)
        slots = self._slots.keys_between(2 * first_track, 2 * end_track).reshape(2, -1) - first_track
        for rank, tracks in zip(ranks, slots, strict=True):
            rank[tracks] = np.arange(len(tracks))
        return _Index(
            position=int(self._cells.keys_between(cell, cell + 1)[0]),
            units=first_unit + order,
            firsts=firsts[order],
            starts=units[order, 1],
            runs=range(first_run, end_run),
            track=first_track,
            ranks=ranks,
        )

    def _find(self, index: _Index, samples: IntArray) -> IntArray:
        """Return positions int64[n] of samples int64[n] in the cell of an index."""
        unit = index.units[np.maximum(index.starts.searchsorted(samples, 'right') - 1, 0)]
        _, start, size, bits, key = self._units.columns_at(unit)
        draws = samples - start
        known = (draws >= 0) & (draws < size)
        draws[~known] = 0
        draws = feistel_unpermute(*(a.view(np.uint64) for a in (draws, size, bits, key))).view(np.int64)
        unit = index.units[np.maximum(index.firsts.searchsorted(start + draws, 'right') - 1, 0)]
        shift, unit_start = self._units.columns_at(unit)[:2]
        place = self._units.keys_at(unit)
        row = place & _ROW_MASK
        # The row that the draw would be in, if this unit is of the sample's shard and long enough.
        offset = draws + shift - row
        known &= (unit_start == start) & (offset >= 0) & (offset < self._sizes.keys_at(unit))
        row[known] += offset[known]

        first_run, end_run = index.runs.start, index.runs.stop
        begin, end = (int(a) + 1 >> 1 for a in self._folds.rows_between(first_run, first_run + 1)[0, [2, 4]])
        in_head, in_tail = row < begin, row >= end
        row = np.where(in_head, 2 * begin - 1 - row, np.where(in_tail, 2 * end - 1 - row, row))
        rows = self._runs.rows_between(first_run, end_run)[:, 1]
        run = first_run + rows.searchsorted(row, 'right') - 1
        first, first_row, samples_of_row, bits, key, tracks, slot = self._runs.columns_at(run)
        by_opening, by_closing = index.ranks[:, (place >> _ROW_BITS) - index.track]
        x = np.where(slot == 2 * index.track, by_opening, by_closing)
        x[in_head] = (tracks + by_opening)[in_head]
        x[in_tail] = (tracks + self._folds.columns_at(run)[0] + by_closing)[in_tail]
        number = row - first_row
        is_whole = tracks == 0
        x[is_whole], number[is_whole] = row[is_whole], 0
        first += number * samples_of_row
        number *= _ROW_STEP
        number += key
        x = feistel_unpermute(*(a.view(np.uint64) for a in (x, samples_of_row, bits, number))).view(np.int64)
        return np.where(known, x + first - index.position, -1)


@dataclass(frozen=True, slots=True)
class _Index:
    """The index of a cell for `CellTable.find`."""

    position: int
    """The cell's first position."""
    units: IntArray
    """int64[units]: its units in order of their shards, and of their place in the shard's order of draws."""
    firsts: IntArray
    """int64[units]: the shard's first sample plus the number of the unit's first draw, of these; ascending."""
    starts: IntArray
    """int64[units]: the shard's first sample, of these; ascending."""
    runs: range
    """Numbers of its runs."""
    track: int
    """Its first track."""
    ranks: IntArray
    """int64[2, tracks]: the tracks' ranks in order of opening, and of closing, last first."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of rows between which nothing opens or closes, of a cell; head and tail are folded onto them."""

    positions: IntArray
    """int64[runs]: position of the run's first sample, row after row."""
    rows: IntArray
    """int64[runs]: its first row."""
    tracks: IntArray
    """int64[runs]: tracks open in these rows themselves, at least one."""
    head_tracks: IntArray
    """int64[runs]: tracks open in the rows before `begin` that are folded onto these."""
    tail_tracks: IntArray
    """int64[runs]: tracks open in the rows from `end` on that are folded onto these."""
    closing: NDArray[np.bool_]
    """bool[runs]: whether a track has closed before it."""
    begin: int
    """The first row onto which rows are folded: the k-th before it lies on the k-th from it on."""
    end: int
    """The row after the last, likewise."""

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
    """Cut parts above 1.5 times the mean into equal units.

    Args:
        sizes: int64[parts], samples of parts.

    Returns:
        Of each unit the part, samples of the part before it, and its samples; int64[units].
    """
    limit = 3 * -(-int(sizes.sum()) // len(sizes))
    pieces = -(-2 * sizes // limit)
    owner = np.repeat(np.arange(len(sizes)), pieces)
    piece = np.arange(len(owner)) - (np.cumsum(pieces) - pieces)[owner]
    before = sizes[owner] * piece // pieces[owner]
    return owner, before, sizes[owner] * (piece + 1) // pieces[owner] - before


def _first_units(units: IntArray, num_tracks: int, fraction: int) -> IntArray:
    """Return the order int64[units] that units go to tracks in: first, for each track, one in proportion to its size.

    This is systematic sampling (Madow, 1949): the units at equal distances along the line of all. If it hits a large
    unit twice, the next units of the line take the place.

    Args:
        units: int64[units], their samples.
        num_tracks: number of tracks, not above the number of units.
        fraction: 32 bits, where to begin.
    """
    ends = np.cumsum(units)
    total = int(ends[-1])
    hits = np.arange(num_tracks) * total // num_tracks + (fraction * total // num_tracks >> 32)
    first = np.unique(ends.searchsorted(hits, 'right'))
    later = np.ones(len(units), np.bool_)
    later[first] = False
    return np.concatenate([first, later.nonzero()[0]])


def _assign(units: IntArray, opening: IntArray) -> tuple[IntArray, IntArray]:
    """Give each unit, in order, to the track that is free first, the lowest of several; return tracks and first rows.

    The first units go to the tracks of the same numbers: track l's is unit l.
    """
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
