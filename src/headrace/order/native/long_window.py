"""A long window of slots, whose streams are in the order of sorted hashes; evaluated in parts.

Each slot has a key, a hash, and the slots in the order of their keys belong to stream 0, then to stream 1, and so on. A
slot's stream follows from its own key and from the keys at which streams begin, one a stream. To find these, the keys
of all slots must be counted, but need not be sorted or kept. That matters with many streams: a window's length grows
with the square of their number, and the memory here with the number itself.
"""

from __future__ import annotations

import bisect

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.random.hashing import KeyArray, first_bits, sort_keys

_BLOCK = 1 << 16  # slots whose keys are made at once: arrays that fit the CPU's cache
_MARKS = 8
_SLOTS_PER_BUCKET = 64
_MOST_BITS = 16  # of a bucket's number


class LongWindow:
    """The streams of a window's slots: the same as if `keyed_order` had sorted all of them."""

    __slots__ = ('_before_marks', '_begins', '_counted', '_key', '_length', '_marks')

    def __init__(self, key: int, counts: IntArray, near: int = 0) -> None:
        """Find where streams begin. `counts`: int64[streams], their slots; `near`: a slot that will be looked at."""
        self._key, self._length = key, int(counts.sum())
        bits = min(max(1, (self._length // _SLOTS_PER_BUCKET).bit_length()), _MOST_BITS)
        step = -(-self._length // (_MARKS * _BLOCK)) * _BLOCK
        self._marks = sorted({*range(0, self._length, step), near // _BLOCK * _BLOCK})

        # Slots by the first bits of their keys, before every mark and at the end.
        slots = np.zeros(1 << bits, np.int64)
        marked: list[IntArray] = []
        for block, buckets in enumerate(first_bits(key, self._length, bits, _BLOCK)):
            if block * _BLOCK == self._marks[min(len(marked), len(self._marks) - 1)]:
                marked.append(slots.copy())
            slots += np.bincount(buckets, minlength=len(slots))

        # A stream begins at a rank, and so in a bucket; streams without slots at the end have none.
        ranks = np.cumsum(counts)[:-1]
        ranks = ranks[ranks < self._length]
        ends = np.cumsum(slots)
        buckets = ends.searchsorted(ranks, 'right')
        keys = self._keys_of(buckets, bits)
        first = (keys >> np.uint64(64 - bits)).searchsorted(buckets.astype(np.uint64))
        places = first + ranks - (ends - slots)[buckets]
        self._begins = keys[places]
        """uint64[streams with slots - 1]: the key of each stream's first slot, except the first stream's."""

        # Below such a key and before a mark: what is in earlier buckets, and some of its own one.
        numbers = (keys & np.uint64((1 << (self._length - 1).bit_length()) - 1)).astype(np.int64)
        self._before_marks = np.zeros((len(marked), len(counts)), np.int64)
        """int64[marks, streams]: slots of each stream before a mark."""
        for row, mark, slots in zip(self._before_marks, self._marks, marked, strict=True):
            among = np.concatenate([[0], np.cumsum(numbers < mark)])
            below = np.concatenate([[0], np.cumsum(slots)])[buckets] + among[places] - among[first]
            row[: len(below) + 1] = np.diff(below, prepend=0, append=mark)
        self._counted = 0, self._before_marks[0]  # a slot, and what is before it

    def _keys_of(self, chosen: IntArray, bits: int) -> KeyArray:
        """Return the keys of all slots in chosen buckets, ascending."""
        is_chosen = np.zeros(1 << bits, np.bool_)
        is_chosen[chosen] = True
        slots = [
            is_chosen.take(buckets).nonzero()[0] + block * _BLOCK
            for block, buckets in enumerate(first_bits(self._key, self._length, bits, _BLOCK))
        ]
        keys = sort_keys(self._key, np.concatenate(slots), self._length)
        keys.sort()
        return keys

    def _streams(self, begin: int, end: int) -> IntArray:
        """Return the streams of slots from begin on and below end, int64[end - begin]."""
        keys = sort_keys(self._key, np.arange(begin, end), self._length)
        return self._begins.searchsorted(keys, 'right')

    def part(self, begin: int, end: int) -> tuple[IntArray, IntArray]:
        """Slots of each stream before a part, int64[streams], and its streams, int64[slots]; cheapest in order."""
        mark = bisect.bisect_right(self._marks, begin) - 1
        slot, before = self._marks[mark], self._before_marks[mark]
        if slot < self._counted[0] <= begin:
            slot, before = self._counted
        for first in range(slot, begin, _BLOCK):
            before = before + np.bincount(self._streams(first, min(first + _BLOCK, begin)), minlength=len(before))
        streams = self._streams(begin, end)
        self._counted = end, before + np.bincount(streams, minlength=len(before))
        return before, streams

    def slot_of(self, stream: int, draw: int) -> int:
        """Return the slot of a draw of a stream, counted from 0 in the window."""
        mark = int(self._before_marks[:, stream].searchsorted(draw, 'right')) - 1
        draw -= int(self._before_marks[mark, stream])
        for begin in range(self._marks[mark], self._length, _BLOCK):
            slots = (self._streams(begin, min(begin + _BLOCK, self._length)) == stream).nonzero()[0]
            if draw < len(slots):
                return begin + int(slots[draw])
            draw -= len(slots)
        raise IndexError(f'stream {stream} has no such draw in this window, got {draw} past its last.')
