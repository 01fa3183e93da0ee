"""Streams in equal shares: each global batch holds of every stream its share, rounded down or up.

A segment has nb batches of G samples, C canonical nodes divide G (else see `stratified_free`), and each node has
H = G / C slots of a batch. Think of the segment's draws, stream after stream, as the numbers y in [0, nb·G), so that
stream s is an interval of them.
The slots are numbered such that slot h of node c in batch k has

    y = h·nb·C + v,   v = (u + nb·c) mod nb·C,   u = C·π + π·g div nb,   π = a·k mod nb,   g = gcd(C, nb),

a being coprime to nb. This maps slots one to one to [0, nb·G). The y of a batch are those that are u modulo nb, each
nb-th number. So an interval holds floor or ceil of its share of them. On one node they are each nb·C-th.
a is near nb / golden ratio, so successive batches get residues far apart. A stream's draws stay near its share, within
a few, at any point.

The number of a node's slots below a y, before batch k, is that of the i < k for which a·i mod nb falls into a cyclic
interval: two sums Σ floor((a·i + b) / nb), which Euclid's algorithm gives in O(log nb) steps (Graham, Knuth, Patashnik:
Concrete Mathematics, 1994, section 3.5, on such sums).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.order.arrays import IntArray
from headrace.order.native.interleave import BatchInterleave
from headrace.order.random.hashing import derive, hashes

_GOLDEN = 0.6180339887498949
_CANDIDATES = 64


def grid_quotas(counts: IntArray, batch_size: int, num_nodes: int) -> IntArray:
    """Return int64[streams, nodes], the draws of each stream on each node in a segment of whole batches.

    `counts`, int64[streams], fill the batches, of a multiple of `num_nodes` samples, exactly.
    """
    num_batches = int(counts.sum()) // batch_size
    total = num_batches * num_nodes
    rows, rest = np.divmod(np.cumsum(counts)[:, None], total)
    low, high, wrapped = residues(rest, np.arange(num_nodes), num_batches, num_nodes)
    return np.diff(rows * num_batches + high - low + wrapped, axis=0, prepend=0)


def residues(rest: IntArray, nodes: IntArray, num_batches: int, num_nodes: int) -> tuple[IntArray, IntArray, IntArray]:
    """The π in [0, nb) for which v < rest, as low, high and wrapped. They are those in [low, high) and in [0, wrapped).

    Arrays are int64 of any shapes that broadcast; 0 <= rest <= nb·C.
    """
    total = num_batches * num_nodes
    # v < rest: u lies in [-nb·c, rest - nb·c) modulo nb·C.
    begins = total - num_batches * nodes
    ends = begins + rest
    low, high, wrapped = (
        _first(u, num_batches, num_nodes) for u in (begins, np.minimum(ends, total), np.maximum(ends - total, 0))
    )
    return low, high, wrapped


def _first(u: IntArray, num_batches: int, num_nodes: int) -> IntArray:
    """The least π whose u is not below each of some numbers in [0, nb·C]; u(π) rises from 0."""
    # With m = nb / g: u(π) = C·π + π div m, so that m of the π take C·m + 1 of the u. Nothing exceeds 64 bits.
    m = num_batches // math.gcd(num_nodes, num_batches)
    rounds, rest = u // (num_nodes * m + 1), u % (num_nodes * m + 1)
    return rounds * m - -rest // num_nodes


def floor_sums(n: NDArray[Any] | int, m: int, a: int, b: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of floor((a·i + b) / m) over 0 <= i < n, for each b >= 0, of the shape of b; a >= 0, m > 0.

    The sums, and n·a + b, must fit the type of b.
    """
    totals = np.zeros_like(b)
    counts = totals + n
    while counts.any():
        totals += counts * (counts - 1) // 2 * (a // m) + counts * (b // m)
        a, b = a % m, b % m
        scaled = a * counts + b
        counts, b = scaled // m, scaled % m
        m, a = a, m
    return totals


def multiplier(num_batches: int, num_nodes: int, stride: int = 1) -> int:
    """A number coprime to nb, near nb / golden ratio, whose multiples are spread evenly modulo nb and modulo nb / C.

    With a stride, so are the multiples in every stride-th batch.
    """
    if num_batches < 3:
        return 1
    centre = round(num_batches * _GOLDEN)
    best: tuple[int, int] | None = None
    for i in range(4 * _CANDIDATES):
        a = centre + (-1) ** i * -(-i // 2)
        if 0 < a < num_batches and math.gcd(a, num_batches) == 1:
            worst = max(_largest_quotient(by * a % num_batches, num_batches) for by in (1, num_nodes, stride))
            if best is None or worst < best[0]:
                best = worst, a
        if best is not None and i >= _CANDIDATES:
            break
    assert best is not None  # 1 and nb - 1 are coprime to nb, and gaps between such numbers are short
    return best[1]


def _largest_quotient(a: int, m: int) -> int:
    """The largest partial quotient of the continued fraction of a / m."""
    largest = 0
    while a:
        largest = max(largest, m // a)
        m, a = a, m % a
    return largest


class StratifiedInterleave(BatchInterleave):
    """Each batch of the segment has floor or ceil of each stream's share; on each node, too.

    In a batch on a node, the order of streams is that of sorted hashes.
    """

    __slots__ = ('_a', '_ends', '_key', '_nodes')

    def __init__(self, counts: IntArray, batch_size: int, num_nodes: int, key: int) -> None:
        """Arguments as `grid_quotas`'s, and a key of the segment."""
        self._ends = np.cumsum(counts)
        self._key, self._nodes = key, num_nodes
        num_batches = int(self._ends[-1]) // batch_size
        self._a = multiplier(num_batches, num_nodes)
        super().__init__((len(counts), num_nodes), num_batches, batch_size // num_nodes)

    def batches(self, node: int, first: int, last: int) -> tuple[IntArray, IntArray]:
        batches = np.arange(first, last)
        total = self._batches * self._nodes
        pi = np.array([self._a * k % self._batches for k in batches.tolist()])  # products may exceed 64 bits
        u = self._nodes * pi + pi * math.gcd(self._nodes, self._batches) // self._batches
        v = (u + self._batches * node) % total
        y = np.arange(self._slots) * total + v[:, None]
        streams = self._ends.searchsorted(y, 'right')
        slots = (batches[:, None] * self._nodes + node) * self._slots + np.arange(self._slots)
        shuffled = hashes(derive(self._key, node), slots).argsort(1, kind='stable')
        return self.draws_before_batch(node, first), np.take_along_axis(streams, shuffled, 1)

    def draws_before_batch(self, node: int, batch: int) -> IntArray:
        batches = self._batches
        rows, rest = np.divmod(self._ends, batches * self._nodes)
        low, high, wrapped = residues(rest, np.array(node), batches, self._nodes)
        # How many of i < batch have a·i mod nb in [x, y) is the sum for nb - x less that for nb - y.
        bounds = np.concatenate([np.atleast_1d(low), [0], high, wrapped])
        if batches >> 31:  # Python's integers hold the sums
            bounds = bounds.astype(object)
        sums = floor_sums(batch, batches, self._a, batches - bounds)
        until, until_wrapped = np.split(sums[2:], 2)
        visits = (sums[0] - until + sums[1] - until_wrapped).astype(np.int64)
        return np.diff(rows * batch + visits, prepend=0)
