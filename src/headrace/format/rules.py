"""The rules for the values of single shards, applied to all shards of a table at once.

No file name leads out of the dataset's folder, is one of headrace's own, or is repeated. No count is larger than its
file. These are the rules of `entries`, which explains mistakes. Here the answer is only "surely valid" or "check".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.format.entries import INDEX_NAME, MAX_OFFSET, OWN_NAMES
from headrace.format.names import NameFinder
from headrace.format.table import Kind, ShardTable

__all__ = ['is_surely_valid']

# All names are one text, each between two '/'; so parts of names are, too.
_FORBIDDEN: Final = (b'//', b'/./', b'/../', b'\\', b'\0')
_RESERVED: Final = (f'/{INDEX_NAME}/'.encode(), f'/{OWN_NAMES}'.encode())
"""In any case, and with characters in between that some file systems ignore."""


def is_surely_valid(table: ShardTable) -> bool:
    """Whether `EntryParser` would surely accept a table whose columns fit one another."""
    return (
        _names_stay_inside(table)
        and bool((table.samples >= 0).all())
        and bool((table.sizes >= 0).all())
        and all(_counts_fit(table, number, kind) for number, kind in enumerate(table.kinds))
        and NameFinder(table.names, table.name_starts).all_differ
    )


def _names_stay_inside(table: ShardTable) -> bool:
    names = table.names.tobytes()
    # Each name has a '/' before and after it, and is not empty.
    if names[:1] != b'/' or bool((np.diff(table.name_starts) < 2).any()):
        return False
    if bool((table.names[table.name_starts - 1] != ord('/')).any()) or any(text in names for text in _FORBIDDEN):
        return False
    if not names.isascii():
        try:
            names = names.decode().casefold().encode('ascii', 'ignore')
        except UnicodeDecodeError:
            return False
    folded = names.lower()
    return not any(text in folded for text in _RESERVED)


def _counts_fit(table: ShardTable, number: int, kind: Kind) -> bool:
    shards = slice(None) if len(table.kinds) == 1 else np.flatnonzero(table.kind_of == number)
    samples = table.samples[shards]
    files = table.first_files[:-1][shards]
    data: npt.NDArray[np.int64] = table.sizes[files]
    # The last raw file has the table of offsets: a count, then 4 bytes for each sample and 4 for the last one's end.
    last_packed = kind.files[-1][1] is not None
    offsets: npt.NDArray[np.int64] = table.sizes[files + len(kind.algorithms) - (2 if last_packed else 1)]
    if bool((np.maximum(data, offsets) > MAX_OFFSET).any()) or bool((samples > MAX_OFFSET).any()):
        return False
    if bool((offsets < 8 + 4 * samples).any()):
        return False
    room = data - (8 + 4 * samples) if kind.schema.format == 'mds' else data
    least = min(kind.schema.min_sample_size, MAX_OFFSET + 1)  # no overflow; no file is larger
    return not bool((samples * least > room).any())
