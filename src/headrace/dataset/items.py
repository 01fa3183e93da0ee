"""Access to samples by id with `[]`: one, a slice or a list."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ['SamplesById']


class SamplesById:
    """`dataset[...]` in terms of `get_item`, which subclasses may override."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of samples that have an id."""

    @abstractmethod
    def get_item(self, sample_id: int) -> Any:
        """One sample, by an id from 0 to `size` - 1."""

    def __getitem__(self, at: int | slice | Sequence[int] | npt.NDArray[np.integer[Any]]) -> Any:
        """One sample by its global id, or a list of samples. Negative ids count from the end. Lists may hold lists.

        Raises:
            IndexError: there is no such sample.
            TypeError: it is none of these.
        """
        if isinstance(at, (int, np.integer)):
            size = self.size
            if not -size <= at < size:
                raise IndexError(f'A sample id must be at least {-size} and below {size}, but is {at}.')
            return self.get_item(int(at) % size)
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.size))]
        if isinstance(at, (str, bytes)):
            raise TypeError(f'A sample id is an int, a slice, or a list or array of ints, but is {at!r:.60}.')
        return [self[_index(i)] for i in at]


def _index(at: Any) -> Any:
    try:
        return operator.index(at)
    except TypeError:
        return at  # a slice, or more ids
