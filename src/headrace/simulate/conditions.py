"""The machines, the network and the model of a simulated run."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headrace.errors import ConfigError

__all__ = ['Conditions']


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The assumptions of a simulation. Times are in seconds, rates in bytes per second.

    Raises:
        ConfigError: a value is out of range.
    """

    ranks: int = 1
    """Ranks of all nodes together."""
    nodes: int = 1
    step_seconds: float = 0.1
    """Time of a training step, without waiting for data."""
    bandwidth: float = 1e9 / 8
    """Of each node, for all its connections together."""
    connection_bandwidth: float = float('inf')
    """Of one connection."""
    latency: float = 0.03
    """From a request to the first byte of its answer."""
    read_seconds: float = 0.0002
    """Time in which one process makes a batch from cached shards, with decoding and `transform`."""
    unpack_rate: float = 1e9
    """Bytes of a compressed shard that one process unpacks per second; of the unpacked shard."""
    start_seconds: float = 0.1
    """Time in which the workers of a rank start, in each epoch that starts them."""
    batches: int = 500
    """The most global batches of an epoch that are simulated; the rest is estimated from their second half."""
    epochs: int = 1
    """Epochs that are simulated, one after the other, with one cache."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name in {'step_seconds', 'latency', 'read_seconds', 'start_seconds'}
            may_be_infinite = field.name in {'bandwidth', 'connection_bandwidth', 'unpack_rate'}
            if not (value > 0 or (may_be_zero and value == 0)) or (value == math.inf and not may_be_infinite):
                rule = ('0 or more' if may_be_zero else 'more than 0') + ('' if may_be_infinite else ', and finite')
                raise ConfigError(f'`{field.name}` of a simulation must be {rule}, got {value}.')
        if self.ranks % self.nodes:
            raise ConfigError(f'the nodes must divide the ranks, got {self.ranks} ranks on {self.nodes} nodes.')

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""
        return self.ranks // self.nodes
