"""Finished shards, as encoders give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.format.shard_memory import Piece
from headrace.format.shards import ShardInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ['CollectedShard', 'EncodedRows', 'EncodedShard', 'ShardPieces']


@dataclass(frozen=True, slots=True)
class EncodedShard:
    """A finished shard."""

    info: ShardInfo
    """Its entry in the index; ``info.entry()`` is the JSON object."""
    files: tuple[tuple[str, bytes], ...]
    """Name and content of each file to store. With compression only the compressed files."""


@dataclass(frozen=True, slots=True)
class ShardPieces:
    """A finished shard whose files are not in one piece each, so that nothing is copied before it is stored."""

    info: ShardInfo
    """Its entry in the index."""
    files: tuple[tuple[str, list[Piece]], ...]
    """Name and content of each file to store. The content is the pieces, one after another.

    Memory is used again when the last view of it goes. So a writer takes each piece out of the list once it is stored.
    """


@dataclass(frozen=True, slots=True)
class CollectedShard:
    """The samples of a shard, which are to be packed into its files."""

    number: int
    """The shard's number in the dataset, from 0."""
    samples: int
    """Number of samples."""
    pack_pieces: Callable[[], ShardPieces]
    """As `pack`, but only compression and hashes join the samples."""

    def pack(self) -> EncodedShard:
        """Join, compress and hash the samples. Any thread may call it."""
        packed = self.pack_pieces()
        return EncodedShard(packed.info, tuple((name, b''.join(pieces)) for name, pieces in packed.files))


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded samples that are not yet in a shard."""

    sizes: np.ndarray[Any, np.dtype[np.int64]]
    """Bytes of each sample."""
    pieces: Callable[[int, int], Iterable[Piece]]
    """The bytes of samples from one row to before another. They are copied before the next piece is asked for."""
