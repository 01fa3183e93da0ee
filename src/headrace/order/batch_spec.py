"""How a sequence is cut into batches, and which rank of how many reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace.errors import TopologyError

if TYPE_CHECKING:
    from headrace.order.topology import Topology

__all__ = ['BatchSpec', 'Remainder', 'check_batch_size']

Remainder: TypeAlias = Literal['repeat', 'exact', 'drop']


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Everything that a pass needs to know beside its epoch and its start, with every default filled in."""

    global_batch_size: int
    """Samples in a batch of all replicas together."""
    topology: Topology
    """Which rank of how many reads."""
    remainder: Remainder
    """The fate of the samples after the last full batch."""

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of one replica."""
        return self.global_batch_size // self.topology.replicas


def check_batch_size(size: int, topology: Topology) -> None:
    """Check that the replicas can share a global batch of ``size`` samples equally.

    Raises:
        TopologyError: they cannot.
    """
    replicas = topology.replicas
    if size < 1 or size % replicas:
        near = sorted({max(replicas, size // replicas * replicas), (max(size, 0) // replicas + 1) * replicas})
        raise TopologyError(
            f'the global batch size must be a multiple of the {replicas} data-parallel replicas '
            f'({topology.world_size} ranks, replication {topology.replication}), got {size}. '
            f'Nearest: {" or ".join(map(str, near))}.'
        )
