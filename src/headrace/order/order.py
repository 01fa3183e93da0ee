"""The global sequence of an epoch: which sample stands at which position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.errors import ConfigError
from headrace.order.shuffle import ALGORITHMS

if TYPE_CHECKING:
    from headrace.order.config import OrderConfig
    from headrace.order.mixture import IntArray, Mixture

__all__ = ['Order', 'make_order']


class Order(Protocol):
    """The sequence of one epoch, a pure function of (mixture, config, epoch); it knows nothing of the topology.

    An order may keep what it computed for the next call, and is used by one thread at a time.
    """

    def __len__(self) -> int:
        """Return the number of positions, the epoch's size."""
        ...

    @property
    def num_canonical_nodes(self) -> int:
        """Position p belongs to canonical node p modulo this."""
        ...

    def at(self, positions: IntArray) -> IntArray:
        """Return global sample ids int64[n] at positions int64[n], each in [0, len), in any order, repeats allowed.

        Ids are numbered stream after stream, shard after shard, in stored order.

        Raises:
            IndexError: a position is out of range.
        """
        ...


def make_order(mixture: Mixture, config: OrderConfig, epoch: int) -> Order:
    """Return the sequence of one epoch.

    Args:
        mixture: the streams and what an epoch draws from each.
        config: how to order; its defaults are filled in from the mixture.
        epoch: 0, 1, …; streams go on in epoch e + 1 where epoch e left them.

    Raises:
        ConfigError: the algorithm or batching method is unknown, or the epoch negative.
    """
    config = config.resolve_defaults(mixture)
    if epoch < 0:
        raise ConfigError(f'epoch must be at least 0, got {epoch}.')
    algorithm = ALGORITHMS.get(str(config.algorithm))
    if algorithm is None:
        raise ConfigError(f'shuffle_algo must be one of {sorted(ALGORITHMS)}, got {config.algorithm!r}.')
    return algorithm(mixture, config, epoch)
