"""The parts of a source as a few arrays; `Part` objects are made on request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from headrace.sources.protocol import Part

__all__ = ['PartTable']


class PartTable(Sequence[Part]):
    """Parts, in the order of the rows.

    Args:
        keys: the objects.
        object_of: uint32[parts], number of each part's object.
        rows: int64[parts].
        sizes: int64[parts], estimates of the bytes of shards.
        range_starts: int64[parts + 1], number of each part's first range, then of all ranges.
        ranges: int64[ranges, 2], offset and size.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        object_of: npt.NDArray[np.uint32],
        rows: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        range_starts: npt.NDArray[np.int64],
        ranges: npt.NDArray[np.int64],
    ) -> None:
        self.keys = list(keys)
        self.object_of, self.rows, self.sizes = object_of, rows, sizes
        self.range_starts, self.ranges = range_starts, ranges

    @classmethod
    def of(cls, parts: Iterable[Part]) -> PartTable:
        """The table of these parts."""
        parts = list(parts)
        keys = list(dict.fromkeys(part.key for part in parts))
        number = {key: i for i, key in enumerate(keys)}
        starts = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part.ranges) for part in parts], out=starts[1:])
        return cls(
            keys,
            object_of=np.array([number[part.key] for part in parts], np.uint32),
            rows=np.array([part.rows for part in parts], np.int64),
            sizes=np.array([part.size for part in parts], np.int64),
            range_starts=starts,
            ranges=np.array([span for part in parts for span in part.ranges], np.int64).reshape(-1, 2),
        )

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays, for `pack_source`; `keys` are for the settings."""
        return {
            'object_of': self.object_of,
            'rows': self.rows,
            'sizes': self.sizes,
            'range_starts': self.range_starts,
            'ranges': self.ranges,
        }

    @classmethod
    def from_arrays(cls, keys: Sequence[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> PartTable:
        """The table whose `keys` and `arrays` these are."""
        names = 'object_of', 'rows', 'sizes', 'range_starts', 'ranges'
        return cls(keys, **{name: arrays[name] for name in names})

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | list[Part]:
        if isinstance(index, slice):
            return [self[part] for part in range(*index.indices(len(self)))]
        part = range(len(self))[index]
        spans = self.ranges[self.range_starts[part] : self.range_starts[part + 1]].tolist()
        return Part(
            key=self.keys[self.object_of[part]],
            ranges=tuple((offset, size) for offset, size in spans),
            rows=int(self.rows[part]),
            size=int(self.sizes[part]),
        )
