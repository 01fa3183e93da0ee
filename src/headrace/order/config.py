"""What a user may say about the order, and what it comes to for given data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.order.mixture import Mixture

__all__ = ['DEFAULT_ALGORITHM', 'DEFAULT_SEED', 'OrderConfig']

DEFAULT_ALGORITHM = 'native'
DEFAULT_SEED = 9176  # MosaicML Streaming's

_SHARDS_PER_CANONICAL_NODE = 64
_MAX_DEFAULT_CANONICAL_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderConfig:
    """Everything but the mixture and the epoch that a global sequence depends on. None: a default, see `resolve`."""

    shuffle: bool = False
    """Whether samples are shuffled. If not, streams follow one another in stored order."""
    algorithm: str | None = None
    """Name of the shuffle algorithm."""
    seed: int = DEFAULT_SEED
    """Shuffle seed, a non-negative int of any size."""
    num_canonical_nodes: int | None = None
    """Number of parts that the sequence runs through side by side: position p belongs to canonical node p modulo
    this. On any number of nodes that divides it, a node reads only its own parts' shards. 0 is None."""
    block_size: int | None = None
    """Samples of a canonical node's sequence over which a shard's samples are spread, about."""
    batching: str = 'random'
    """How streams share batches."""
    sampling: str = 'balanced'
    """How a part of a shard is chosen; the native order ignores it, every pass being a part of an endless sequence."""
    sampling_granularity: int = 1
    """Neighbouring samples chosen together; the native order ignores it."""
    partition: str = 'relaxed'
    """How the sequence is split over nodes; the native order ignores it."""

    def __post_init__(self) -> None:
        bounds = {'seed': 0, 'num_canonical_nodes': 0, 'block_size': 1, 'sampling_granularity': 1}
        for name, least in bounds.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(f'{name} must be an int of at least {least}, got {value!r}.')

    def resolve_defaults(self, mixture: Mixture) -> OrderConfig:
        """Fill in what is None from the data alone, so that the sequence does not depend on the topology.

        * algorithm: native.
        * num_canonical_nodes: 1 without shuffle, so that the sequence is the stored one. With shuffle the power of two
          below shards / 64, from 1 to 64: enough parts for that many nodes to read disjoint shards, each with enough
          shards to shuffle well.
        * block_size: 4,000,000 / num_canonical_nodes, at least 262,144, as MosaicML Streaming.
        """
        nodes = self.num_canonical_nodes
        if not nodes:
            parts = mixture.num_shards // _SHARDS_PER_CANONICAL_NODE if self.shuffle else 1
            nodes = min(1 << max(parts.bit_length() - 1, 0), _MAX_DEFAULT_CANONICAL_NODES)
        return replace(
            self,
            algorithm=self.algorithm or DEFAULT_ALGORITHM,
            num_canonical_nodes=nodes,
            block_size=self.block_size or max(4_000_000 // nodes, 262_144),
        )
