"""The machines, the network and the model of a simulated run."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headrace.errors import ConfigError
from headrace.mixing import LoaderConfig
from headrace.order import Topology

__all__ = ['Conditions']

_STALL_SECONDS, _STALL_SHARE = 0.001, 0.05


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The assumptions of a simulation. Times are in seconds, rates in bytes per second.

    Raises:
        ConfigError: a value is out of range.
    """

    ranks: int = 1
    """Ranks of all nodes together."""
    nodes: int = 1
    replication: int = 1
    """Neighbouring ranks that get the same samples; 1: as many as the configuration says."""
    step_seconds: float = 0.1
    """Time of a training step, without waiting for data."""
    bandwidth: float = 1e9 / 8
    """Of each node, for all its connections together."""
    connection_bandwidth: float = float('inf')
    """Of one connection."""
    latency: float = 0.03
    """From a request to the first byte of its answer."""
    request_seconds: float = 0.002
    """Time of a request beside the latency: a library signs and sends it, and reads the answer's head."""
    publish_seconds: float = 0.001
    """Time from the last byte of a shard until it can be read: it is checked and gets its name."""
    read_seconds: float = 0.0002
    """Time in which one process makes a batch from cached shards, with decoding and `transform`."""
    receive_seconds: float = 0.0005
    """Time in which a trainer takes a batch that a worker has made."""
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
            may_be_zero = field.name == 'latency' or field.name.endswith('_seconds')
            may_be_infinite = field.name in {'bandwidth', 'connection_bandwidth', 'unpack_rate'}
            if not (value > 0 or (may_be_zero and value == 0)) or (value == math.inf and not may_be_infinite):
                rule = ('0 or more' if may_be_zero else 'more than 0') + ('' if may_be_infinite else ', and finite')
                raise ConfigError(f'`{field.name}` of a simulation must be {rule}, got {value}.')
        if self.ranks % self.nodes:
            raise ConfigError(f'the nodes must divide the ranks, got {self.ranks} ranks on {self.nodes} nodes.')

    def topology(self, config: LoaderConfig) -> Topology:
        """The first rank of the run of a loader.

        Raises:
            TopologyError: the replication divides no node.
        """
        copies = config.replication or 1 if self.replication == 1 else self.replication
        return Topology(rank=0, world_size=self.ranks, num_nodes=self.nodes, replication=copies)

    @property
    def shortest_stall(self) -> float:
        """Seconds of waiting above which a step counts as a stall, as in `LoaderStats.stalls`."""
        return max(_STALL_SECONDS, _STALL_SHARE * self.step_seconds)

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""
        return self.ranks // self.nodes
