"""Which node keeps which shard: a pure function of what all nodes know alike.

A hash of node and shard scores each node for each shard (rendezvous hashing). A shard belongs to the node with the
highest score that still has room for it. So nodes agree without a message about each shard, each keeps as much as its
own limit allows, and the shards of a full node fall evenly to the others. A shard for which no node has room is kept by
none, always the same ones: by turns, each would be gone when it is asked for.

Assigning a shard to its first reader would save a copy, but that node changes every epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

Address: TypeAlias = 'tuple[str, int]'
_Hashes: TypeAlias = 'npt.NDArray[np.uint64]'

KEPT: Final = 0.875
"""The share of a limit that shards may take which are kept for other nodes."""
PASSING: Final = 2
"""Shards of the largest size that have room in any case beside those that are kept: one is read, and one comes."""


def text_of(address: Address) -> str:
    host, port = address
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def seed_of(address: Address) -> int:
    """The hash of a node."""
    return xxh64_intdigest(text_of(address).encode())


def hash_of(stream: str, key: str) -> int:
    """The hash of a shard. `stream` names the data, `key` the entry."""
    return xxh64_intdigest(f'{stream}/{key}'.encode('utf-8', 'surrogatepass'))


def scores(seeds: _Hashes, hashes: _Hashes) -> _Hashes:
    """How firmly nodes would keep shards; both are broadcast. The last steps of splitmix64 mix their hashes."""
    mixed = seeds ^ hashes
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


def room_to_keep(limit: float, largest: int) -> float:
    """Bytes of shards that a node keeps for all, of a limit, if the largest shard has this many bytes."""
    return max(0.0, min(KEPT * limit, limit - PASSING * largest))


def assign(
    hashes: _Hashes, sizes: npt.NDArray[np.int64], seeds: _Hashes, rooms: Sequence[float]
) -> npt.NDArray[np.int64]:
    """The number of the node that keeps each shard, int64[shards]; -1: none has room for it.

    Args:
        hashes: uint64[shards], of which no two are equal.
        sizes: bytes of each shard.
        seeds: uint64[nodes].
        rooms: bytes that each node can keep.
    """
    keepers, left = np.full(len(hashes), -1, np.int64), list(rooms)
    waiting, open_nodes = np.arange(len(hashes)), list(range(len(seeds)))
    while len(waiting) and open_nodes:
        best, chosen = np.zeros(len(waiting), np.uint64), np.full(len(waiting), open_nodes[0])
        for node in open_nodes:
            score = scores(seeds[node], hashes[waiting])
            chosen[score > best] = node
            best = np.maximum(best, score)
        refused = [waiting[:0]]
        for node in list(open_nodes):
            firmest = np.flatnonzero(chosen == node)
            firmest = waiting[firmest[np.argsort(~best[firmest], kind='stable')]]
            ends = sizes[firmest].cumsum()
            count = int(ends.searchsorted(left[node], 'right'))
            keepers[firmest[:count]] = node
            if count < len(firmest):
                open_nodes.remove(node)
                refused.append(firmest[count:])
            elif count:
                left[node] -= int(ends[-1])
        waiting = np.sort(np.concatenate(refused))
    return keepers


@dataclass(frozen=True, slots=True, eq=False)
class SharedShards:
    """The shards that nodes share."""

    hashes: _Hashes
    """uint64[shards], ascending, each once."""
    sizes: npt.NDArray[np.int64]
    """Bytes of each shard."""

    @classmethod
    def of(cls, stream: str, keys: Iterable[str], sizes: npt.NDArray[np.int64]) -> SharedShards:
        """The shards of a stream; arguments as those of `hash_of`, and the bytes of each."""
        hashes = np.fromiter((hash_of(stream, key) for key in keys), np.uint64, len(sizes))
        return cls.joined([cls(hashes, sizes)])

    @classmethod
    def joined(cls, parts: Sequence[SharedShards]) -> SharedShards:
        """The shards of several streams."""
        hashes = np.concatenate([np.zeros(0, np.uint64), *(part.hashes for part in parts)])
        sizes = np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)])
        hashes, first = np.unique(hashes, return_index=True)
        return cls(hashes, sizes[first])

    def are_same(self, other: SharedShards) -> bool:
        return np.array_equal(self.hashes, other.hashes) and np.array_equal(self.sizes, other.sizes)


class Duty(enum.IntEnum):
    """The part of a node in sharing one shard."""

    NONE = 0
    FETCH = 1
    """No node keeps it, but this one fetches it for those that want it at about the same time."""
    KEEP = 2


class Ownership:
    """The node that keeps each shard for all, and those that take its place."""

    def __init__(self, rooms: Mapping[Address, float], shards: SharedShards) -> None:
        """`rooms`: bytes that the limit of each node allows for shards; inf: it has none."""
        self._nodes, self._shards = list(rooms), shards
        self._seeds = np.array([seed_of(node) for node in rooms], np.uint64)
        largest = int(shards.sizes.max(initial=0))
        kept = [room_to_keep(room, largest) for room in rooms.values()]
        self._keepers = assign(shards.hashes, shards.sizes, self._seeds, kept)

    def scores(self, shard: int) -> dict[Address, int]:
        """How firmly each node would keep a shard, by its hash: an order that depends on nothing but names."""
        return dict(zip(self._nodes, scores(self._seeds, np.array([shard], np.uint64)).tolist(), strict=True))

    def keeper(self, shard: int) -> Address | None:
        """The node that keeps a shard, by its hash, or None. Other shards are of the one that scores them highest."""
        hashes = self._shards.hashes
        place = int(hashes.searchsorted(np.uint64(shard)))
        if place == len(hashes) or int(hashes[place]) != shard:
            return max((score, node) for node, score in self.scores(shard).items())[1]
        return None if self._keepers[place] < 0 else self._nodes[self._keepers[place]]

    def order(self, shard: int) -> list[Address]:
        """All nodes: the keeper of a shard, by its hash, and then those that score it highest."""
        keeper, by_score = self.keeper(shard), self.scores(shard)
        return sorted(by_score, key=lambda node: (node == keeper, by_score[node], node), reverse=True)

    def duty(self, node: Address, shard: int) -> Duty:
        if self.keeper(shard) is not None:
            return Duty.KEEP if self.keeper(shard) == node else Duty.NONE
        return Duty.FETCH if self.order(shard)[0] == node else Duty.NONE

    def kept_bytes(self, node: Address) -> int:
        """Bytes of the shards that a node keeps."""
        return int(self._shards.sizes[self._keepers == self._nodes.index(node)].sum())
