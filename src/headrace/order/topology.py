"""Which part of the world a process is, and the batches that it shares: ranks, nodes, replicas and global batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias, get_args

from headrace.errors import ConfigError, TopologyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where a rank stands among all ranks. Dataloader workers are not part of it: they take a rank's batches in turn.

    With ``replication`` k, each k ranks receive the same samples (tensor or sequence parallelism): consecutive ones,
    unless ``replica_index`` says otherwise. Everything about order is said of the *parallel* world of ``replicas`` =
    world_size / k. Its nodes are the physical ones where a physical node's number of ranks divides the number of
    replicas, else a single node: MosaicML Streaming's rule, so that the two agree on who reads what.

    Raises:
        TopologyError: a number is not an integer, is out of range, or does not divide what it has to divide.
    """

    rank: int = 0
    """This process, 0 <= rank < world_size, node after node."""
    world_size: int = 1
    """Number of ranks, over all nodes."""
    num_nodes: int = 1
    """Number of physical nodes; each has world_size / num_nodes ranks."""
    replication: int = 1
    """Number of ranks that receive the same samples."""
    replica_index: int | None = None
    """The replica that this rank belongs to, where ranks that receive the same samples are not consecutive; None where
    they are."""

    def __post_init__(self) -> None:
        for name in ('rank', 'world_size', 'num_nodes', 'replication', 'replica_index'):
            value = getattr(self, name)
            is_left_out = name == 'replica_index' and value is None
            if not is_left_out and (isinstance(value, bool) or not isinstance(value, int)):
                raise TopologyError(f'{name} must be an int, got {value!r} ({type(value).__name__}).')
        for name in ('world_size', 'num_nodes', 'replication'):
            if getattr(self, name) < 1:
                raise TopologyError(f'{name} must be at least 1, got {getattr(self, name)}.')
        if not 0 <= self.rank < self.world_size:
            raise TopologyError(
                f'rank must be in [0, world_size), got rank {self.rank} of world_size {self.world_size}. '
                'Check RANK and WORLD_SIZE of the launcher.'
            )
        if self.world_size % self.num_nodes:
            raise TopologyError(
                f'every node must have the same number of ranks, got world_size {self.world_size} '
                f'on num_nodes {self.num_nodes}.'
            )
        if self.world_size % self.replication:
            raise TopologyError(
                f'replication must divide world_size, got replication {self.replication} '
                f'and world_size {self.world_size}. Start a multiple of {self.replication} ranks, or change it.'
            )
        if self.replica_index is not None and not 0 <= self.replica_index < self.replicas:
            raise TopologyError(f'replica_index must be in [0, {self.replicas}), got {self.replica_index}.')
        if self.replica_index == self.rank // self.replication:  # so that equal topologies compare equal
            object.__setattr__(self, 'replica_index', None)

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas: groups of ranks that receive different samples."""
        return self.world_size // self.replication

    @property
    def replica(self) -> int:
        """The replica that this rank belongs to, 0 <= replica < replicas."""
        return self.rank // self.replication if self.replica_index is None else self.replica_index

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on a physical node."""
        return self.world_size // self.num_nodes

    @property
    def physical_node(self) -> int:
        """The physical node that this rank runs on."""
        return self.rank // self.ranks_per_node

    @property
    def nodes(self) -> int:
        """Number of nodes of the parallel world; divides ``replicas``."""
        return self.replicas // self.ranks_per_node if self.replicas % self.ranks_per_node == 0 else 1

    @property
    def replicas_per_node(self) -> int:
        """Number of replicas on a node of the parallel world."""
        return self.replicas // self.nodes

    @property
    def node(self) -> int:
        """The node of the parallel world that this rank's replica belongs to."""
        return self.replica // self.replicas_per_node

    @property
    def local_replica(self) -> int:
        """This rank's replica among those of its node of the parallel world."""
        return self.replica % self.replicas_per_node


def with_replication(topology: Topology, replication: int | None, label: str) -> Topology:
    """The topology with a replication that it does not have yet. `label`: who asks, for the message."""
    if not isinstance(topology, Topology):  # pyright: ignore[reportUnnecessaryIsInstance] - not all callers have types
        raise TopologyError(
            f'{label}: the topology must be a Topology, got {topology!r}. Write Topology(rank=..., world_size=...).'
        )
    if replication in (None, 1, topology.replication):
        return topology
    if topology.replication > 1:
        raise TopologyError(
            f'{label}: the topology has replication={topology.replication}, but the argument says '
            f'replication={replication}. Remove the argument.'
        )
    return replace(topology, replication=replication, replica_index=None)


Remainder: TypeAlias = Literal['repeat', 'exact', 'drop']

Uneven: TypeAlias = Literal['pad', 'ragged']
"""How replicas share a global batch that they do not divide. Each has the rows of its turn. ``pad``: a replica with a
row less than others repeats one, as padding. ``ragged``: it has a row less; only one without any row has padding."""


class World(NamedTuple):
    """The ranks and the global batches that an order depends on."""

    nodes: int = 1  # Nodes of the parallel world; any number where `Run.needs_nodes` says no.
    global_batch_size: int | None = None
    """Samples of a global batch, if it is known; no matter where `Run.needs_batch_size` says no."""
    replicas: int | None = None
    """Ranks that share a global batch, if they are known; no matter where `Run.needs_replicas` says no."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Everything that a pass needs to know beside its epoch and its start, with every default filled in."""

    global_batch_size: int  # Samples in a batch of all replicas together.
    topology: Topology  # Which rank of how many reads.
    remainder: Remainder  # The fate of the samples after the last full batch.
    uneven: Uneven | None = None  # How replicas share a batch that they do not divide; without it, they must divide it.

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of one replica, at most."""
        return -(-self.global_batch_size // self.topology.replicas)

    @property
    def world(self) -> World:
        """Its ranks and batches, for the order."""
        return World(self.topology.nodes, self.global_batch_size, self.topology.replicas)


def check_batch_size(size: int, topology: Topology, uneven: Uneven | None = None, name: str = '') -> None:
    """Check that the replicas can share a global batch of ``size`` samples: equally, or a row for each if ``uneven``.

    `name`: whose batch it is, for messages. ConfigError: ``uneven`` is unknown. TopologyError: they cannot share it.
    """
    if uneven not in (None, *get_args(Uneven)):
        raise ConfigError(f'uneven must be one of {list(get_args(Uneven))}, or None, got {uneven!r}.')
    replicas = topology.replicas
    if size >= replicas and (uneven or size % replicas == 0):
        return
    ranks = f'{topology.world_size} ranks'
    if topology.replication > 1:
        ranks += f' with replication {topology.replication} make {replicas} replicas, which'
    below = max(size, 0) // replicas * replicas
    nearest = f'{below} and {below + replicas}' if below else str(replicas)
    fix = ' Or set `uneven: pad`, so that some ranks have a row less.' if below else ''
    raise TopologyError(
        f'{ranks} must divide the global batch size{name and f" of {name}"}, but it is {size}. The nearest that they '
        f'divide: {nearest}.{fix}'
    )
