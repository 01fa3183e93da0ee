"""The random numbers of numpy's `default_rng(seed)`, computed by ourselves, slowly.

Behind `generators`, in case an installed numpy should give other numbers than the ones that MosaicML Streaming's
orders were made with. Sources: `SeedSequence` is M. O'Neill's seed_seq_fe128 (https://www.pcg-random.org/), the
generator her PCG XSL-RR 128/64. Shuffles are Fisher and Yates' with masked bits; other bounded integers are D. Lemire's
(https://arxiv.org/abs/1805.10941); draws without replacement are R. Floyd's, or the tail of a shuffle where that is
shorter, as numpy chooses between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ['PortableGenerator']

_32, _64, _128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_POOL = 4
_FLOYD_ABOVE = 10000
_FLOYD_SHARE = 50


class PortableGenerator:
    """The methods of `numpy.random.Generator` that the compatible orders use, with the same numbers."""

    __slots__ = ('_half', '_increment', '_state')

    def __init__(self, seed: int) -> None:
        """Take a non-negative int of any size."""
        if seed < 0:
            raise ValueError(f'a seed must be at least 0, got {seed}.')
        words = _seed_words(seed)
        state, sequence = words[0] << 64 | words[1], words[2] << 64 | words[3]
        self._increment = (sequence << 1 | 1) & _128
        self._state = ((self._increment + state) * _MULTIPLIER + self._increment) & _128
        self._half: int | None = None

    def random(self, count: int) -> NDArray[np.float64]:
        """Return float64[count], uniform in [0, 1)."""
        return np.array([(self._next_64() >> 11) * 2.0**-53 for _ in range(count)], np.float64)

    def integers(self, low: int, high: int, size: int | None = None) -> Any:
        """Return an int in [low, high), or int64[size] of them.

        Raises:
            ValueError: low >= high.
        """
        if low >= high:
            raise ValueError('low >= high')
        if size is None:
            return low + self._below(high - low)
        return np.array([low + self._below(high - low) for _ in range(size)], np.int64)

    def shuffle(self, x: NDArray[Any]) -> None:
        """Shuffle a one-dimensional array in place."""
        values = x.tolist()
        self._shuffle(values, 1, self._masked)
        x[:] = values

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Return 0 … n-1 shuffled, int64[n]."""
        values = list(range(n))
        self._shuffle(values, 1, self._masked)
        return np.array(values, np.int64)

    def choice(self, n: int, size: int, *, replace: Literal[False]) -> NDArray[np.int64]:  # noqa: ARG002 - numpy's name
        """Return int64[size], different numbers below n, in random order.

        Raises:
            ValueError: size is larger than n.
        """
        if not 0 <= size <= n:
            raise ValueError('Cannot take a larger sample than population when replace is False')
        if n > _FLOYD_ABOVE and size > n // _FLOYD_SHARE:
            values = list(range(n))
            self._shuffle(values, max(n - size, 1), self._below)
            return np.array(values[n - size :], np.int64)
        chosen: dict[int, None] = {}
        for j in range(n - size, n):
            value = self._below(j + 1)
            chosen[j if value in chosen else value] = None
        values = list(chosen)
        self._shuffle(values, 1, self._below)
        return np.array(values, np.int64)

    def _shuffle(self, values: list[Any], first: int, below: Callable[[int], int]) -> None:
        for i in range(len(values) - 1, first - 1, -1):
            j = below(i + 1)
            values[i], values[j] = values[j], values[i]

    def _masked(self, n: int) -> int:
        """Return an int in [0, n), 2 <= n <= 2^64, the way numpy shuffles: bits are drawn until they are below n."""
        mask = (1 << (n - 1).bit_length()) - 1
        draw = self._next_32 if n <= 1 << 32 else self._next_64
        while (value := draw() & mask) >= n:
            pass
        return value

    def _below(self, n: int) -> int:
        """Return an int in [0, n), 1 <= n < 2^64, by Lemire's method."""
        if n == 1:
            return 0
        if n == 1 << 32:
            return self._next_32()
        draw, bits = (self._next_32, 32) if n < 1 << 32 else (self._next_64, 64)
        mask = (1 << bits) - 1
        product = draw() * n
        if product & mask < n:
            threshold = ((1 << bits) - n) % n
            while product & mask < threshold:
                product = draw() * n
        return product >> bits

    def _next_32(self) -> int:
        # The low half of 64 bits first; the high half is kept, also over calls for 64 bits.
        if self._half is not None:
            half, self._half = self._half, None
            return half
        word = self._next_64()
        self._half = word >> 32
        return word & _32

    def _next_64(self) -> int:
        self._state = state = (self._state * _MULTIPLIER + self._increment) & _128
        word, turn = (state >> 64 ^ state) & _64, state >> 122
        return (word >> turn | word << (-turn & 63)) & _64


def _seed_words(seed: int) -> list[int]:
    """Four 64-bit words of a seed."""
    entropy = [seed >> shift & _32 for shift in range(0, max(seed.bit_length(), 1), 32)]
    constant = 0x43B0D7E5

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & _32
        value = value * constant & _32
        return value ^ value >> 16

    def mixed(x: int, y: int) -> int:
        value = (0xCA01F9DD * x - 0x4973F715 * y) & _32
        return value ^ value >> 16

    pool = [hashed(entropy[i] if i < len(entropy) else 0) for i in range(_POOL)]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for value in entropy[_POOL:]:
        for target in range(_POOL):
            pool[target] = mixed(pool[target], hashed(value))

    constant = 0x8B51F9DD
    halves: list[int] = []
    for i in range(8):
        value = pool[i % _POOL] ^ constant
        constant = constant * 0x58F38DED & _32
        value = value * constant & _32
        halves.append(value ^ value >> 16)
    return [low | high << 32 for low, high in zip(halves[::2], halves[1::2], strict=True)]
