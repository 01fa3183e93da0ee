"""MosaicML Streaming's shuffle algorithms, by name: one file each.

An algorithm permutes the positions of the samples that an epoch draws. `headrace.order.mosaicml.order` makes the
epoch's sequence from it. The native order (`headrace.order.native`) has another form, and a name beside them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.order.arrays import IntArray

__all__ = ['ALGORITHMS', 'PERMUTATIONS', 'Permutation']


class Permutation(Protocol):
    """One of MosaicML Streaming's shuffle algorithms."""

    def __call__(
        self, out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int, /
    ) -> None:
        """Fill ``out`` with a permutation of 0 … N-1.

        Args:
            out: int64[N]; nothing else of its length is held but temporarily, at most two more.
            sizes: int64[units], samples that lie together: shards, or what an epoch draws of them. They sum to N.
            num_parts: number of canonical nodes.
            seed: of the run.
            epoch: 0, 1, …
            block_size: samples over which a canonical node's samples are spread, about.
        """
        ...


def _permutations() -> dict[str, Permutation]:
    """The function ``shuffle_NAME`` of each module NAME of this folder that has one."""
    names = sorted(module.name for module in iter_modules(__path__) if module.name != 'spans')
    return {name: getattr(import_module(f'{__name__}.{name}'), f'shuffle_{name}') for name in names}


PERMUTATIONS: Mapping[str, Permutation] = MappingProxyType(_permutations())
"""MosaicML Streaming's algorithms."""

ALGORITHMS = ('native', *PERMUTATIONS)
"""The names of all."""
