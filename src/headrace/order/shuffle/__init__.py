"""The shuffle algorithms, by name: one file each.

An algorithm is a way to make the sequence of an epoch (`native`), or a permutation of the positions of what an epoch
draws (the compatible ones), which `headrace.order.compatible` makes a sequence of.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from headrace.order.shuffle.naive import shuffle_naive
from headrace.order.shuffle.py1b import shuffle_py1b
from headrace.order.shuffle.py1br import shuffle_py1br
from headrace.order.shuffle.py1e import shuffle_py1e
from headrace.order.shuffle.py1s import shuffle_py1s
from headrace.order.shuffle.py2s import shuffle_py2s

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


PERMUTATIONS: Mapping[str, Permutation] = MappingProxyType(
    {
        'naive': shuffle_naive,
        'py1b': shuffle_py1b,
        'py1br': shuffle_py1br,
        'py1e': shuffle_py1e,
        'py1s': shuffle_py1s,
        'py2s': shuffle_py2s,
    }
)
"""The compatible algorithms."""

ALGORITHMS = ('native', *PERMUTATIONS)
"""The names of all."""
