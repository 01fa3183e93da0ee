"""The samples of a stream that every epoch draws under ``sampling_method='fixed'``.

A stream of T samples that gives an epoch q·T + r of them gives each sample q times, and the same r samples once more.
To the native order it is a stream of q·T + r samples, of which each epoch is one pass. A shard of n samples stands
there for q·n + m numbers: q times its samples, then m of them. `FixedSubset` translates.

The r samples are spread over the shards by their sizes, along a fixed random line of shards. A shard is a circle, cut
at a random place into m equal parts, and gives a random sample of each part. So all samples are equally likely, and any
chosen one is found by arithmetic.
"""

from __future__ import annotations

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.mixture.mixture import StreamSize
from headrace.order.random.hashing import KeyArray, derive, hashes, keyed_order

_LINE, _OFFSET, _CUT, _SAMPLE = 1, 2, 3, 4


class FixedSubset:
    """A stream's samples that an epoch draws, numbered from 0: shard after shard, in stored order."""

    def __init__(self, stream: StreamSize, choose: int, granularity: int, key: int) -> None:
        """Choose samples of a stream; the more a shard has together, by `granularity`, the fewer shards are touched."""
        self._sizes, self._key = stream.shard_sizes, key
        copies, rest = divmod(choose, stream.size)
        self._copies = copies
        order = keyed_order(derive(key, _LINE), len(self._sizes))
        self._parts = np.empty_like(self._sizes)
        self._parts[order] = _spread(self._sizes[order], rest, granularity, derive(key, _OFFSET))
        self.sizes = self._sizes * copies + self._parts  # int64[shards]: numbers that stand for samples of each shard.
        self._ends, self._stored_ends = np.cumsum(self.sizes), np.cumsum(self._sizes)

    def samples(self, numbers: IntArray) -> IntArray:
        """Return samples of the stream int64[n] for numbers int64[n], each in [0, choose)."""
        shards = self._ends.searchsorted(numbers, 'right')
        sizes, parts = self._sizes.take(shards), self._parts.take(shards)
        begins = (self._stored_ends - self._sizes).take(shards)
        drawn = numbers - (self._ends - self.sizes).take(shards)
        part = drawn - self._copies * sizes
        drawn %= sizes
        where = (part >= 0).nonzero()[0]
        shards, sizes, parts = shards[where], sizes[where], parts[where]
        cuts, firsts = self._circle(shards, sizes, parts)
        rows = self._chosen(shards, (firsts + part[where]) % parts, sizes, parts)
        drawn[where] = (rows + cuts) % sizes
        return drawn + begins

    def _circle(self, shards: IntArray, sizes: IntArray, parts: IntArray) -> tuple[IntArray, IntArray]:
        """Return where shards are cut, and which parts have their first chosen samples; int64[n] each."""
        cuts = _below(hashes(derive(self._key, _CUT), shards), sizes)
        # The part that has row 0 may have chosen one of the last rows.
        zero = (sizes - cuts) % sizes
        first = ((zero + 1) * parts - 1) // sizes
        return cuts, (first + (self._chosen(shards, first, sizes, parts) < zero)) % parts

    def _chosen(self, shards: IntArray, part: IntArray, sizes: IntArray, parts: IntArray) -> IntArray:
        """Return the rows, counted from the cut, that are chosen from parts of shards; int64[n] each."""
        begins = part * sizes // parts
        lengths = (part + 1) * sizes // parts - begins
        keys = hashes(derive(self._key, _SAMPLE), (self._stored_ends - self._sizes).take(shards) + part)
        return begins + _below(keys, lengths)

    def numbers(self, sample: int) -> list[int]:
        """Return all numbers that stand for a sample of the stream, ascending."""
        shard = int(self._stored_ends.searchsorted(sample, 'right'))
        size, parts = int(self._sizes[shard]), int(self._parts[shard])
        row, begin = sample - int(self._stored_ends[shard]) + size, int(self._ends[shard] - self.sizes[shard])
        numbers = [begin + copy * size + row for copy in range(self._copies)]
        if parts:
            of_shard = tuple(np.array([n], np.int64) for n in (shard, size, parts))
            cut, first = (int(a[0]) for a in self._circle(*of_shard))
            row = (row - cut) % size
            part = ((row + 1) * parts - 1) // size
            if self._chosen(of_shard[0], np.array([part]), *of_shard[1:])[0] == row:
                numbers.append(begin + self._copies * size + (part - first) % parts)
        return numbers


def _below(keys: KeyArray, limits: IntArray) -> IntArray:
    """Return numbers below limits int64[n], from 32 bits of keys uint64[n]."""
    return ((keys >> np.uint64(32)) * limits.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _spread(sizes: IntArray, rest: int, granularity: int, key: int) -> IntArray:
    """Return how many of ``rest`` samples shards give by their sizes, in multiples of a granularity, int64[shards]."""
    total = int(sizes.sum())
    ends = np.cumsum(sizes)
    if total * (rest + 1) >> 63:  # Python's integers hold it
        ends = ends.astype(object)
    # The offset makes the part of a sample that rounding gives or takes equally likely everywhere.
    wanted = ((ends * rest + key % total) // total).astype(np.int64)
    if granularity == 1:
        return np.diff(wanted, prepend=0)
    given = 0
    chosen = np.zeros_like(sizes)
    for i, (size, until) in enumerate(zip(sizes.tolist(), wanted.tolist(), strict=True)):
        owed = until - given
        chosen[i] = size if owed >= size else owed // granularity * granularity
        given += int(chosen[i])
    room = np.cumsum(sizes - chosen)
    chosen += np.diff(np.minimum(room, rest - given), prepend=0)
    return chosen
