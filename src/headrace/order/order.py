"""The global sequence of an epoch: which sample stands at which position, and how it is cut into batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError, TopologyError, UnknownNameError
from headrace.order.batch_spec import Remainder, check_batch_size
from headrace.order.mosaicml.order import MosaicMLOrder, MosaicMLPlan
from headrace.order.native.order import NativeOrder
from headrace.order.plan import Plan
from headrace.order.shuffle import ALGORITHMS
from headrace.order.skip import Ranges, Skip, in_whole_batches, skipped_in_epoch, skipped_in_run

if TYPE_CHECKING:
    from headrace.order.config import OrderConfig
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.protocols import BatchPlan, LoadPermutation, Order
    from headrace.order.topology import Topology

__all__ = ['left_out', 'make_order', 'make_plan']


def make_order(mixture: Mixture, config: OrderConfig, epoch: int, load: LoadPermutation | None = None) -> Order:
    """Return the sequence of one epoch.

    Args:
        mixture: the streams and what an epoch draws from each.
        config: how to order; its defaults are filled in from the mixture.
        epoch: 0, 1, …; streams go on in epoch e + 1 where epoch e left them.
        load: where a compatible order gets its permutation from at the first `Order.at`; None: computed in memory.

    Raises:
        UnknownNameError: the algorithm, batching or partition is unknown.
        ConfigError: the native order does not have that batching, or the epoch is negative.
    """
    config = config.resolve_defaults(mixture)
    if epoch < 0:
        raise ConfigError(f'epoch must be at least 0, got {epoch}.')
    if config.is_mosaicml:
        if mixture.schedule is not None or len(mixture.stages) > 1:
            raise ConfigError(
                f"a schedule, or when_exhausted 'drop_stream', needs the native order, got {config.algorithm!r}."
            )
        return MosaicMLOrder(mixture, config, epoch, load)
    if config.algorithm != 'native':
        raise UnknownNameError(f'shuffle_algo must be one of {sorted(ALGORITHMS)}, got {config.algorithm!r}.')
    return NativeOrder(mixture, config, epoch)


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
        initial_nodes: nodes of the parallel world that the run began on; matters to the compatible orders only.
        skip: ranges of the run that are left out; with a compatible order, all batches that they touch.
        epoch: which epoch of the run it is; matters to ``skip`` only.

    Raises:
        TopologyError: the replicas cannot share the global batch equally, or its device batches.
        ConfigError: start, remainder or skip is out of range, or the order does not have that remainder.
    """
    if isinstance(order, MosaicMLOrder):
        plan = MosaicMLPlan(order, topology, global_batch_size, start, remainder, initial_nodes)
        if not skip:
            return plan
        ranges = left_out(skip, order.mixture, global_batch_size, remainder, plan.epoch_rows)
        ranges = skipped_in_epoch(ranges, epoch * len(order), len(order))
        return MosaicMLPlan(order, topology, global_batch_size, start, remainder, initial_nodes, ranges)
    check_batch_size(global_batch_size, topology)
    ranges = left_out(skip, order.mixture, global_batch_size, remainder)
    ranges = skipped_in_epoch(ranges, order.mixture.takeover.begin_of(epoch, len(order)), len(order))
    if order.units:
        if remainder == 'exact' and sum(order.mixture.is_drawn) > 1:
            raise ConfigError(
                "remainder 'exact' needs batching_method 'random' or 'stratified': with batches of one stream an epoch "
                'draws whole batches, so a few samples more or less than a stream has. Choose one of these methods for '
                "evaluation, or remainder 'repeat' or 'drop'."
            )
        _check_units(order.units, global_batch_size, topology.replicas)
        ranges = in_whole_batches(ranges, order.first, global_batch_size, len(order))
    return Plan(order, topology, global_batch_size, start, remainder, ranges)


def _check_units(units: int, global_batch_size: int, replicas: int) -> None:
    """Check that a replica's batch is of whole units, or within one."""
    if units % replicas and replicas % units:
        known = [n for n in range(1, global_batch_size + 1) if global_batch_size % n == 0]
        allowed = [n for n in known if units % n == 0 or n % units == 0]
        raise TopologyError(
            f'with device_per_stream batching the ranks that share a global batch must divide the {units} device '
            f'batches that the run began with, or be a multiple of them, got {replicas}. Possible are {allowed}.'
        )


def left_out(
    skip: Skip, mixture: Mixture, global_batch_size: int, remainder: Remainder, batches: int | None = None
) -> Ranges:
    """Return the positions of the run that are left out; arguments as `make_plan`'s.

    ``batches``: batches of an epoch of which none is left out; None: as many as its samples make.

    Raises:
        ConfigError: a range is empty or reversed; or it counts batches, and epochs before had another size.
    """
    size, takeover = mixture.epoch_size, mixture.takeover
    if takeover.begin != takeover.epoch * size and any(bound.unit == 'ba' for bounds in skip for bound in bounds):
        ranges = ', '.join(f'[{begin}, {end}]' for begin, end in skip)
        raise ConfigError(
            f'ranges of skip must count samples after the epochs have changed their size, got {ranges}: epoch '
            f'{takeover.epoch} begins at sample {takeover.begin} of the run, and has {size} samples.'
        )
    if batches is None:
        whole, rest = divmod(size, global_batch_size)
        batches = whole + (rest > 0 and remainder != 'drop')
    return skipped_in_run(skip, epoch_size=size, global_batch_size=global_batch_size, batches=batches)
