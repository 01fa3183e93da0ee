"""A table that grows: what cells of the native order are kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['Rows']


class Rows:
    """A table of int64[columns] rows that grows at its end, each row under an int64 key."""

    __slots__ = ('_keys', '_rows', 'used')

    def __init__(self, columns: int) -> None:
        self.used = 0
        self._keys = np.zeros(64, np.int64)
        self._rows = np.zeros((64, columns), np.int64)

    def append(self, keys: IntArray, *columns: IntArray) -> None:
        """Add rows, one array int64[n] a column."""
        end = self.used + len(keys)
        if end > len(self._keys):
            room = max(end, 2 * len(self._keys)) - self.used
            self._keys = np.concatenate([self._keys[: self.used], np.zeros(room, np.int64)])
            empty = np.zeros((room, self._rows.shape[1]), np.int64)
            self._rows = np.concatenate([self._rows[: self.used], empty])
        self._keys[self.used : end] = keys
        for i, column in enumerate(columns):
            self._rows[self.used : end, i] = column
        self.used = end

    def find(self, keys: IntArray) -> IntArray:
        """Return the last row whose key is not above, int64[n], for keys int64[n]; the table's keys ascend."""
        found = self._keys[: self.used].searchsorted(keys, 'right')
        found -= 1
        return found

    def keys_at(self, rows: IntArray) -> IntArray:
        """Return the keys int64[n] of rows int64[n]."""
        return self._keys.take(rows)

    def columns_at(self, rows: IntArray) -> IntArray:
        """Return int64[columns, n], what stands in rows int64[n]."""
        return self._rows.take(rows, axis=0).T

    def keys_between(self, begin: int, end: int) -> IntArray:
        """Return a view int64[end - begin] of keys."""
        return self._keys[begin:end]

    def rows_between(self, begin: int, end: int) -> IntArray:
        """Return a view int64[end - begin, columns] of rows."""
        return self._rows[begin:end]
