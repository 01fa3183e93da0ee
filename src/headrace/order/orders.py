"""Orders and plans, of whichever family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.order.decisions import DecidedOrder
from headrace.order.lengths import BucketedOrder
from headrace.order.mosaicml.order import MosaicMLOrder
from headrace.order.native.order import NativeOrder
from headrace.order.topology import BatchSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.order.config import OrderConfig
    from headrace.order.lengths import Costs
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.protocols import BatchPlan, LoadPermutation, Order
    from headrace.order.skip import Skip
    from headrace.order.topology import Remainder, Topology


def make_order(
    mixture: Mixture,
    config: OrderConfig,
    epoch: int,
    load: LoadPermutation | None = None,
    costs: Costs | None = None,
    later: Sequence[Mixture] = (),
) -> Order:
    """Return the sequence of one epoch.

    Args:
        mixture: the streams and what an epoch draws from each.
        config: how to order; its defaults are filled in from the mixture.
        epoch: 0, 1, …; streams go on in epoch e + 1 where epoch e left them.
        load: where a MosaicML order gets its permutation from at the first `Order.at`; None: computed in memory.
        costs: the costs of samples, for a config with ``bucket``.
        later: the mixtures that take over in the epoch; for a native order.

    Raises:
        UnknownNameError: the algorithm, batching or partition is unknown.
        ConfigError: the native order does not have that batching, or the epoch is negative.
    """
    config = config.resolve_defaults(mixture)
    if epoch < 0:
        raise ConfigError(f'epoch must be at least 0, got {epoch}.')
    if later:
        return DecidedOrder([mixture, *later], lambda mixture: make_order(mixture, config, epoch, costs=costs), epoch)
    if config.family.permutation is not None:
        return MosaicMLOrder(mixture, config, epoch, load)
    order = NativeOrder(mixture, config, epoch)
    return order if config.bucket is None or costs is None else BucketedOrder(order, config, costs)


def make_plan(
    order: Order,
    topology: Topology,
    *,
    global_batch_size: int,
    start: int = 0,
    remainder: Remainder = 'repeat',
    initial_nodes: int | None = None,
    skip: Skip = (),
    epoch: int = 0,
) -> BatchPlan:
    """Return the global batches of an order, as each kind of order has them cut.

    Args:
        order: of `make_order`.
        topology: for which rank of how many.
        global_batch_size: samples in a batch of all replicas together.
        start: position where batch 0 begins, as a state says it.
        remainder: what becomes of the samples after the last full batch.
        initial_nodes: nodes of the parallel world that the run began on; matters to MosaicML's orders only.
        skip: ranges of the run to skip; with a MosaicML order, all batches that they touch.
        epoch: which epoch of the run it is; matters to ``skip`` only.

    Raises:
        TopologyError: the replicas cannot share the global batch equally, or its device batches.
        ConfigError: start, remainder or skip is out of range, or the order does not have that remainder.
    """
    batches = BatchSpec(global_batch_size, topology, remainder)
    return order.plan(batches, start, epoch=epoch, skip=skip, initial_nodes=initial_nodes)
