"""The shuffle algorithms, by name: one file each.

An algorithm is a way to make the sequence of an epoch (`native`), or a permutation of the positions of what an epoch
draws (the compatible ones), which `headrace.order.compatible` makes a sequence of.
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
    """A compatible shuffle algorithm."""

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
    helpers = {'lanes', 'line', 'native', 'rows', 'spans'}
    names = sorted(module.name for module in iter_modules(__path__) if module.name not in helpers)
    return {name: getattr(import_module(f'{__name__}.{name}'), f'shuffle_{name}') for name in names}


PERMUTATIONS: Mapping[str, Permutation] = MappingProxyType(_permutations())
"""The compatible algorithms."""

ALGORITHMS = ('native', *PERMUTATIONS)
"""The names of all."""
