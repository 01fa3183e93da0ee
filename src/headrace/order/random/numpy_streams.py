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
from headrace.order.random.hashing import hash_text

RandomStream: TypeAlias = 'np.random.Generator'  # a text: the native order needs no numpy.random, which imports slowly
"""Every call continues where the last one stopped."""


def random_stream(seed: int) -> RandomStream:
    """The numbers of `numpy.random.default_rng(seed)`; MissingDependencyError: the installed numpy draws others."""
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
        return all(hash_text(repr(_draws(make(seed)))) == frozen for seed, frozen in _FROZEN.items())
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


_FROZEN: Final = {
    0: 0x107F72FF671055A5,
    9176: 0xCEA1FEF47E43143C,
    18446744082299486209: 0xC25229C0923A344C,
}
"""By seed, `hash_text` of the draws."""
