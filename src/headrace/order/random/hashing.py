"""The native order's own stream of random numbers: 64-bit hashes of integers, the same everywhere for ever.

No generator of numpy's is used, because their streams may change between versions. `mix` is the finaliser of
splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014); arithmetic is modulo 2^64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.arrays import IntArray

KeyArray: TypeAlias = NDArray[np.uint64]

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: splitmix64's increment
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

# numpy takes 0-d arrays twice as fast as scalars, and small batches are all overhead.
_GOLDEN_0D, _MIX_1_0D, _MIX_2_0D = (np.array(c, np.uint64) for c in (_GOLDEN, _MIX_1, _MIX_2))
_27, _30, _31 = (np.array(c, np.uint64) for c in (27, 30, 31))


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX_1) & MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & MASK
    return x ^ (x >> 31)


def derive(key: int, *parts: int) -> int:
    """Return a 64-bit key made from a key and non-negative ints of any size; each part matters, and their order."""
    for part in parts:
        limbs = max(1, -(-part.bit_length() // 64))
        key = _mix((key + limbs * _GOLDEN) & MASK)
        for i in range(limbs):
            key = _mix((key + _GOLDEN + _mix((part >> (64 * i)) & MASK)) & MASK)
    return key


def hash_text(text: str) -> int:
    """Return 64 bits of BLAKE2b of a text in UTF-8."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'little')


def hashes(key: int, numbers: IntArray) -> KeyArray:
    """Return a hash uint64[n] for each number: splitmix64's output of mix(key + (number + 1) · golden)."""
    x = numbers.astype(np.uint64)
    x += np.uint64(1)
    x *= _GOLDEN_0D
    x += np.array(key, np.uint64)
    x ^= x >> _30
    x *= _MIX_1_0D
    x ^= x >> _27
    x *= _MIX_2_0D
    x ^= x >> _31
    return x


def first_bits(key: int, n: int, bits: int, block: int) -> Iterator[IntArray]:
    """Yield the first bits of `hashes` of 0 … n-1, int64[block] at a time; each array is overwritten by the next.

    In blocks that fit the CPU's cache, and without the steps that only change later bits, a hash costs a quarter.
    `bits` is 31 at most.
    """
    steps = np.arange(1, block + 1, dtype=np.uint64)
    steps *= _GOLDEN_0D
    x, t = np.empty_like(steps), np.empty_like(steps)
    shift = np.array(64 - bits, np.uint64)
    for begin in range(0, n, block):
        np.add(steps, np.array((key + begin * _GOLDEN) & MASK, np.uint64), x)
        np.right_shift(x, _30, t)
        np.bitwise_xor(x, t, x)
        np.multiply(x, _MIX_1_0D, x)
        np.right_shift(x, _27, t)
        np.bitwise_xor(x, t, x)
        np.multiply(x, _MIX_2_0D, x)
        np.right_shift(x, shift, x)
        yield x[: n - begin].view(np.int64)


def sort_keys(key: int, numbers: IntArray, n: int) -> KeyArray:
    """Return what `keyed_order` sorts of numbers int64[m] in [0, n); uint64[m].

    The numbers themselves replace the hashes' low bits. This avoids ties, which sort differently on different CPUs.
    2^40 numbers leave 24 bits of hash.
    """
    low = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    keys = hashes(key, numbers)
    keys &= ~low
    keys |= numbers.astype(np.uint64)
    return keys


def keyed_order(key: int, n: int) -> IntArray:
    """Return a permutation int64[n] of 0 … n-1, from sorting hashes; uniform for every n >= 0."""
    keys = sort_keys(key, np.arange(n, dtype=np.int64), n)
    keys.sort()
    keys &= np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    return keys.astype(np.int64)
