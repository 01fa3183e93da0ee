"""Random numbers of MosaicML Streaming's orders: numpy's generators, as long as they give the numbers they always gave.

numpy may change a generator's stream between versions; an order may not change. So the installed numpy has to draw a
few frozen numbers at first use. If one differs, these orders are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.errors import ConfigError, MissingDependencyError

RandomStream: TypeAlias = 'np.random.Generator'  # a text: the native order needs no numpy.random, which imports slowly
"""Every call continues where the last one stopped."""


def random_stream(seed: int) -> RandomStream:
    """Return the stream of a seed, a non-negative int of any size: the numbers of `numpy.random.default_rng(seed)`.

    Raises:
        ConfigError: the seed is negative.
        MissingDependencyError: the installed numpy draws other numbers than numpy 1.26 to 2.4.
    """
    if seed < 0:
        raise ConfigError(f'shuffle_seed must be at least 0, got {seed}.')
    return _checked(np.random.default_rng)(seed)


@cache
def _checked(make: Callable[[int], RandomStream]) -> Callable[[int], RandomStream]:
    if not draws_are_frozen(make):
        raise MissingDependencyError(
            f"This order of samples is made from numpy's random numbers, which numpy {np.__version__} has changed: it "
            f'would give another order. Install a numpy from 1.26 to 2.4.'
        )
    return make


def draws_are_frozen(make: Callable[[int], RandomStream]) -> bool:
    """Whether generators draw, for a few seeds and all methods in a row, the numbers of numpy 1.26 to 2.4."""
    try:
        return all(_draws(make(seed)) == frozen for seed, frozen in _FROZEN.items())
    except (AttributeError, TypeError, ValueError):
        return False


def _draws(stream: RandomStream) -> tuple[Any, ...]:
    """Numbers of every method, also of the ways that depend on sizes, interleaved as orders interleave them."""
    items = np.arange(7, dtype=np.int64)
    view = np.arange(20, dtype=np.int64)[5:14]
    first = stream.permutation(12).tolist()
    stream.shuffle(items)
    stream.shuffle(view)
    few, many = stream.choice(30, 5, replace=False), stream.choice(10_001, 300, replace=False)
    return (
        first,
        items.tolist(),
        view.tolist(),
        few.tolist(),
        [*many[:3].tolist(), int(many.sum())],
        stream.integers(196_608, 327_680, 3).tolist(),
        int(stream.integers(0, 1)),
        int(stream.integers(0, 1 << 40)),
        [float(x).hex() for x in stream.random(2)],
        stream.permutation(70_000)[:3].tolist(),
    )


_FROZEN: Final[dict[int, tuple[Any, ...]]] = {
    0: (
        [9, 2, 7, 4, 5, 11, 0, 3, 6, 10, 8, 1],
        [2, 1, 3, 6, 0, 5, 4],
        [13, 5, 10, 9, 7, 12, 11, 6, 8],
        [11, 12, 28, 0, 7],
        [3065, 7146, 9654, 1580731],
        [204989, 220556, 232262],
        0,
        893172215877,
        ['0x1.55f599a48c33fp-1', '0x1.eab531090dc48p-1'],
        [55678, 47758, 65017],
    ),
    9176: (
        [2, 5, 10, 9, 8, 1, 6, 7, 11, 3, 0, 4],
        [5, 2, 0, 6, 4, 1, 3],
        [8, 9, 7, 11, 6, 5, 13, 10, 12],
        [15, 22, 13, 23, 25],
        [7771, 3616, 4151, 1601098],
        [253843, 241212, 310676],
        0,
        59347294382,
        ['0x1.755b9486cdf93p-1', '0x1.1be6a675988f6p-2'],
        [9032, 69968, 4327],
    ),
    18446744082299486209: (
        [0, 8, 6, 1, 9, 11, 7, 2, 3, 10, 5, 4],
        [2, 3, 6, 5, 1, 0, 4],
        [11, 5, 10, 9, 7, 13, 6, 8, 12],
        [24, 27, 16, 6, 18],
        [3711, 1630, 6310, 1439772],
        [268986, 230443, 259442],
        0,
        756790257584,
        ['0x1.574f334f7a4a5p-1', '0x1.c55d1b3ce7661p-1'],
        [47801, 18376, 33598],
    ),
}
