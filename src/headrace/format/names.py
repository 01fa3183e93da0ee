"""A search for one name among a million, and for duplicates, without a Python object per name."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ['NameFinder']

_LONG: Final = 256  # bytes; longer names, which are few, are hashed one by one
_WORDS: Final = _LONG // 8
# A random secret of each process, so nobody can construct names with equal hashes.
_KEYS: Final = np.frombuffer(os.urandom(8 * (_WORDS + 1)), np.uint64) | np.uint64(1)
_HALF: Final = np.uint64(32)


class NameFinder:
    """The names of a table by their hashes, 16 bytes for each."""

    def __init__(self, names: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> None:
        """Hash all names.

        Args:
            names: all names, with one byte after each.
            starts: int64[names + 1], the offset of each, and the end of the last.
        """
        self._names, self._starts = names, starts
        hashes = _hash_all(names, starts)
        self._order = np.argsort(hashes, kind='stable')
        self._hashes = hashes[self._order]

    @property
    def all_differ(self) -> bool:
        """True only if no name is repeated. A wrong False has a chance below one in a million."""
        return not bool((self._hashes[1:] == self._hashes[:-1]).any())

    def find(self, name: str) -> int | None:
        """The number of a name, or None."""
        try:
            data = name.encode()
        except UnicodeEncodeError:
            return None  # of bytes that are not UTF-8
        one = np.frombuffer(data + b'/', np.uint8)
        wanted = _hash_all(one, np.array([0, len(one)], np.int64))[0]
        first, end = self._hashes.searchsorted(wanted, 'left'), self._hashes.searchsorted(wanted, 'right')
        for number in self._order[first:end].tolist():
            if self._names[self._starts[number] : self._starts[number + 1] - 1].tobytes() == data:
                return number
        return None


def _hash_all(names: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    lengths = np.diff(starts) - 1
    hashes = np.empty(len(lengths), np.uint64)
    for length in np.unique(np.minimum(lengths, _LONG)).tolist():
        if length == _LONG:
            for i in np.flatnonzero(lengths >= _LONG).tolist():
                hashes[i] = hash(names[starts[i] : starts[i + 1] - 1].tobytes()) & 0xFFFFFFFFFFFFFFFF
        else:
            same = np.flatnonzero(lengths == length)
            hashes[same] = _hash_equally_long(names, starts[same], length)
    return hashes


def _hash_equally_long(
    names: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int
) -> npt.NDArray[np.uint64]:
    padded = np.zeros((len(starts), length // 8 + 1, 8), np.uint8)
    padded.reshape(len(starts), -1)[:, :length] = sliding_window_view(names, length)[starts]
    words = padded.view(np.uint64)[:, :, 0]
    hashes = np.full(len(starts), length, np.uint64)
    for i in range(words.shape[1]):
        word = words[:, i] + _KEYS[i]
        word ^= word >> _HALF
        word *= _KEYS[-1 - i]
        word ^= word >> _HALF
        hashes += word
        hashes *= _KEYS[i]
    return hashes
