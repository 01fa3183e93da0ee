"""Where a sample is stored: its shard, and its row among those that a stream offers.

A stream may offer some rows of each shard: rows in ranges, rows of a split, or rows with a bit set. The order numbers
these rows only, and a `RowSelection` finds their stored rows. Only `SelectedBits` has memory per sample, in a mapped
file.

A split permutes the rows of a shard, keyed by seed and shard number: row ``feistel_permute(p)`` is at place p. Of n
places it selects ``floor(low·n + u)`` to ``floor(high·n + u)``, exclusive; u in [0, 1) is keyed likewise. So adjacent
splits share no row and skip none. A row's place depends only on seed, shard number and shard size. The expected number
of selected rows is exactly ``(high - low)·n``, however small a shard is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.mixture.mixture import Mixture
from headrace.order.random.feistel import column_bits, feistel_permute
from headrace.order.random.hashing import KeyArray, derive, hash_text, hashes


class Places(NamedTuple):
    """Samples and their locations; int64[n] each."""

    ids: IntArray  # Global sample ids.
    shards: IntArray  # The shard of each.
    rows: IntArray  # The row of each in its shard.

    def cut(self, part: slice) -> Places:
        """Some of them, as views."""
        return Places(self.ids[part], self.shards[part], self.rows[part])


class SampleMap:
    """Finds the shard and row of global sample ids.

    Ids and shards are numbered stream after stream, in stored order. Set-up is O(shards); a lookup is a binary
    search, or a division where all shards but the last have the same size. Where a stream offers only some of its
    rows, ids number the selected ones, and a lookup also asks its `RowSelection` which stored rows they are.
    """

    __slots__ = ('_bounds', '_equal', '_first_shards', '_selections')

    def __init__(self, shard_sizes: IntArray) -> None:
        """Take the samples of each shard, int64[shards]; shards without samples are allowed."""
        self._selections: Sequence[RowSelection | None] = ()
        self._bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard_sizes, dtype=np.int64)])
        first = int(shard_sizes[0]) if len(shard_sizes) else 0
        equal = first > 0 and bool((shard_sizes[:-1] == first).all()) and 0 < int(shard_sizes[-1]) <= first
        self._equal = first if equal else 0

    @classmethod
    def of(cls, mixture: Mixture, row_selections: Sequence[RowSelection | None] = ()) -> SampleMap:
        """The map of all streams of a mixture, whose sizes count selected rows; None selects all rows."""
        made = cls(mixture.shard_sizes)
        if any(selection is not None for selection in row_selections):
            made._selections, made._first_shards = tuple(row_selections), mixture.shard_offsets[:-1]
        return made

    def places(self, ids: IntArray) -> Places:
        """The ids with their shards and rows; see `locate`."""
        return Places(ids, *self.locate(ids))

    @property
    def num_samples(self) -> int:
        """Number of samples; ids are below it."""
        return int(self._bounds[-1])

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Return global shard numbers int64[n] and rows int64[n] of sample ids int64[n]; IndexError: there is none."""
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.num_samples):
            raise IndexError(f'sample ids must be in [0, {self.num_samples}), got {ids.min()} to {ids.max()}.')
        if self._equal:
            shards = ids // self._equal
            ranks = ids - shards * self._equal
        else:
            shards = self._bounds.searchsorted(ids, 'right') - 1
            ranks = ids - self._bounds[shards]
        return shards, self._stored(shards, ranks) if self._selections else ranks

    def ids_of(self, shard: int) -> range:
        """The ids of a shard's samples; global shard numbers."""
        return range(int(self._bounds[shard]), int(self._bounds[shard + 1]))

    def filled_shards(self, begin: int, end: int) -> IntArray:
        """Those of the shards [begin, end) that hold samples, int64."""
        return begin + np.flatnonzero(np.diff(self._bounds[begin : end + 1]))

    def _stored(self, shards: IntArray, ranks: IntArray) -> IntArray:
        """Which rows the selected ones with these ranks are, int64[n] all."""
        rows = ranks.copy()
        owners = self._first_shards.searchsorted(shards, 'right') - 1
        for number in np.bincount(owners).nonzero()[0].tolist():
            selection = self._selections[number]
            if selection is not None:
                at = (owners == number).nonzero()[0]
                rows[at] = selection.rows(shards[at] - self._first_shards[number], ranks[at])
        return rows

    def locate_one(self, sample_id: int) -> tuple[int, int]:
        """Return the global shard number and the row within that shard of one sample id."""
        if not 0 <= sample_id < self.num_samples:
            raise IndexError(f'sample ids must be in [0, {self.num_samples}), got {sample_id}.')
        if self._selections:
            shards, rows = self.locate(np.array([sample_id]))
            return int(shards[0]), int(rows[0])
        if self._equal:
            return divmod(sample_id, self._equal)
        shard = int(self._bounds.searchsorted(sample_id, 'right')) - 1
        return shard, sample_id - int(self._bounds[shard])


SPLIT_UNIT: Final = 1 << 32
"""The whole of a shard, where a split's low and high are given as integers. Shards hold below 2^30 rows."""

_CHUNK: Final = 1 << 14  # rows that are worked on at once: what stays in a core's cache is twice as fast


class RowSelection(Protocol):
    """The rows of a stream's shards that it offers."""

    counts: IntArray  # int64[shards]: rows selected of each shard; may be 0.

    def rows(self, shards: IntArray, ranks: IntArray) -> IntArray:
        """Return the stored rows of selected ones: shards int64[n], and ranks int64[n] among those selected."""
        ...


def each_selected_row(selection: RowSelection, shards: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield selected rows of shards int64[m], in their order: shard numbers and rows, int64[n] each, some at a time."""
    ends = selection.counts[shards].cumsum()
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, _CHUNK):
        at = np.arange(begin, min(begin + _CHUNK, total))
        which = ends.searchsorted(at, 'right')
        ranks = at - (ends[which] - selection.counts[shards[which]])
        yield shards[which], selection.rows(shards[which], ranks)


def _starts(sizes: IntArray) -> IntArray:
    """Stored number of each shard's first row, int64[shards + 1]; the last entry is the number of rows."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


class SelectedRanges:
    """The rows in ranges of the stream's stored samples, in stored order."""

    def __init__(self, sizes: IntArray, ranges: IntArray) -> None:
        """Take the rows of each shard, int64[shards], and half-open ranges int64[m, 2], ascending and disjoint."""
        self._starts = _starts(sizes)
        self._begins = np.ascontiguousarray(ranges[:, 0])
        self._before = _starts(ranges[:, 1] - ranges[:, 0])
        below = self.below(self._starts)
        self._first = below[:-1]
        self.counts = below[1:] - below[:-1]

    def below(self, stored: IntArray) -> IntArray:
        """How many samples are selected below stored numbers, int64[n] both."""
        at = self._begins.searchsorted(stored, 'right') - 1
        inside = np.minimum(stored - self._begins[at], self._before[at + 1] - self._before[at])
        return np.where(at < 0, 0, self._before[at] + inside)

    def rows(self, shards: IntArray, ranks: IntArray) -> IntArray:
        numbers = self._first[shards] + ranks
        at = self._before.searchsorted(numbers, 'right') - 1
        return self._begins[at] + (numbers - self._before[at]) - self._starts[shards]


class SelectedSplit:
    """A random part of each shard, in the order of the shard's permutation; computed where it is asked for."""

    def __init__(
        self, sizes: IntArray, low: int, high: int, *, seed: int, within: SelectedRanges | None = None
    ) -> None:
        """Take the rows of each shard, int64[shards] below 2^30, of which [low, high) of `SPLIT_UNIT` is selected.

        No row outside of `within` is selected; it does not change which part a row is in. Rows of shards that it cuts
        are listed in memory.
        """
        key = derive(hash_text('split'), seed)
        numbers = np.arange(len(sizes))
        self._sizes = sizes.astype(np.uint64)
        self._bits = column_bits(np.maximum(sizes, 1)).astype(np.uint64)
        self._keys = hashes(key, numbers)
        u = hashes(derive(key, 1), numbers) >> np.uint64(32)
        self._first, end = (
            ((self._sizes * np.uint64(part) + u) >> np.uint64(32)).astype(np.int64) for part in (low, high)
        )
        self.counts = end - self._first
        self._listed: IntArray | None = None
        if within is not None:
            self._cut(sizes, within)

    def _cut(self, sizes: IntArray, within: SelectedRanges) -> None:
        cut = ((within.counts > 0) & (within.counts < sizes)).nonzero()[0]
        starts = _starts(sizes)
        pieces: list[tuple[IntArray, IntArray]] = []
        for shards, rows in each_selected_row(self, cut):
            stored = starts[shards] + rows
            inside = (within.below(stored + 1) > within.below(stored)).nonzero()[0]
            pieces.append((shards[inside], rows[inside]))
        self.counts[within.counts == 0] = 0
        if len(cut):
            empty = np.zeros(0, np.int64)
            shards = np.concatenate([shards for shards, _ in pieces] or [empty])
            self._listed = np.concatenate([rows for _, rows in pieces] or [empty])
            self.counts[cut] = np.bincount(shards, minlength=len(sizes))[cut]
            self._list_at = np.full(len(sizes), -1)
            self._list_at[cut] = _starts(self.counts[cut])[:-1]

    def rows(self, shards: IntArray, ranks: IntArray) -> IntArray:
        places = (self._first[shards] + ranks).astype(np.uint64)
        if self._listed is None:
            return feistel_permute(places, self._sizes[shards], self._bits[shards], self._keys[shards]).astype(np.int64)
        rows = np.empty_like(ranks)
        at = self._list_at[shards]
        listed, free = (at >= 0).nonzero()[0], (at < 0).nonzero()[0]
        rows[listed] = self._listed[at[listed] + ranks[listed]]
        shards = shards[free]
        rows[free] = feistel_permute(places[free], self._sizes[shards], self._bits[shards], self._keys[shards])
        return rows


class SelectedBits:
    """The rows whose bit is set, in stored order: bit ``i % 64`` of word ``i // 64`` is the stream's sample i."""

    def __init__(self, sizes: IntArray, words: KeyArray, below: IntArray | np.ndarray[tuple[int], np.dtype[np.uint32]]):
        """Take the rows of each shard, and the bits, which may be mapped: they are not copied.

        `words` are uint64[samples // 64 + 1], 0 behind the last sample; `below` counts the bits set before each word.
        """
        self._starts = _starts(sizes)
        self._words, self._below = words, below
        ranks = self._rank(self._starts)
        self._first = ranks[:-1]
        self.counts = ranks[1:] - ranks[:-1]

    def _rank(self, stored: IntArray) -> IntArray:
        """How many bits are set below stored numbers, int64[n] both."""
        at, bit = stored >> 6, (stored & 63).astype(np.uint64)
        rest = self._words[at] & ((np.uint64(1) << bit) - np.uint64(1))
        return self._below[at].astype(np.int64) + count_bits(rest)

    def holds(self, stored: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of the stream's stored samples int64[n] are selected, bool[n]."""
        return (self._words[stored >> 6] >> (stored & 63).astype(np.uint64) & np.uint64(1)).astype(np.bool_)

    def rows(self, shards: IntArray, ranks: IntArray) -> IntArray:
        numbers = self._first[shards] + ranks
        # Keys of another type would have the whole array converted.
        at = self._below.searchsorted(numbers.astype(self._below.dtype), 'right') - 1
        left = (numbers - self._below[at]).astype(np.uint64)
        return (at << 6) + _select(self._words[at], left) - self._starts[shards]


# Broadword arithmetic on the 8 bytes of a word (Vigna: Broadword implementation of rank/select queries, 2008).
_EVEN, _PAIRS, _NIBBLES, _ONES, _TOPS = (
    np.array(int(digits * (16 // len(digits)), 16), np.uint64) for digits in ('5', '3', '0f', '01', '80')
)
_1, _2, _4, _7, _8, _56, _255 = (np.array(c, np.uint64) for c in (1, 2, 4, 7, 8, 56, 255))


def _bits_up_to_byte(words: KeyArray) -> KeyArray:
    """In byte b of each result, the number of bits set in bytes 0 … b."""
    x = words - ((words >> _1) & _EVEN)
    x = (x & _PAIRS) + ((x >> _2) & _PAIRS)
    return ((x + (x >> _4)) & _NIBBLES) * _ONES


def count_bits(words: KeyArray) -> IntArray:
    """How many bits are set in each word, int64[n]."""
    return (_bits_up_to_byte(words) >> _56).astype(np.int64)


def _set_bits_of_bytes() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Where the k-th set bit of a byte is, at ``byte * 8 + k``, uint8[2048]; 0 where it has fewer."""
    table = np.zeros((256, 8), np.uint8)
    for byte in range(256):
        bits = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(bits)] = bits
    return table.reshape(-1)


_SET_BITS = _set_bits_of_bytes()


def _select(words: KeyArray, k: KeyArray) -> IntArray:
    """Where the k-th set bit of each word is, int64[n]; k counts from 0 and is below the number of set bits."""
    up_to = _bits_up_to_byte(words)
    # The bytes that end at or before the k-th bit: the top bit of 128 + k - up_to stays set, and nothing is borrowed.
    ended = (((k * _ONES) | _TOPS) - up_to) & _TOPS
    shift = (((ended >> _7) * _ONES) >> _56) * _8
    left = k - (((up_to << _8) >> shift) & _255)
    byte = (words >> shift) & _255
    return (shift + _SET_BITS[(byte * _8 + left).astype(np.int64)]).astype(np.int64)
