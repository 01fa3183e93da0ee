"""A run through the data: its orders, the plans of its passes, and the states of its checkpoints."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from headrace.errors import ConfigError, ResumeError, UnknownNameError
from headrace.order.decisions import (
    DecidedOrder,
    Decision,
    are_of,
    base_digest,
    decided,
    place_of,
    shares_of,
    taken_over,
)
from headrace.order.length_waste import LengthWaste
from headrace.order.lengths import BalancedPlan, BucketedOrder, check_balance, check_batch_cost
from headrace.order.mixture.mixture import Exhaustion, Mixture, StreamSize
from headrace.order.mosaicml.order import MosaicMLOrder
from headrace.order.native.order import NativeOrder
from headrace.order.plan import Plan
from headrace.order.resume import check_skipped, resolved_from_state, resume, warn_of_overruled
from headrace.order.shuffle import PERMUTATIONS
from headrace.order.skip import skipped_ranges
from headrace.order.state import ResumeState
from headrace.order.topology import BatchSpec, World
from headrace.redaction import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.order.config import OrderConfig
    from headrace.order.lengths import Costs
    from headrace.order.mixture.schedule import Schedule
    from headrace.order.protocols import BatchPlan, LoadPermutation, Order
    from headrace.order.skip import Ranges, Skip
    from headrace.order.topology import Remainder, Topology

MixtureChange: TypeAlias = Literal['refuse', 'continue']
"""The reaction to a checkpoint of another mixture: an error, or its streams continue in the new one."""


_FAMILIES: dict[str, type[NativeOrder] | type[MosaicMLOrder]] = {
    'native': NativeOrder,
    **dict.fromkeys(PERMUTATIONS, MosaicMLOrder),
}
_UNKNOWN = World()
_OTHER_RUN = 'the decisions belong to a run that began with other streams, weights or data, or with another seed.'


class RunArguments(NamedTuple):
    order: OrderConfig
    epoch_size: int | None
    schedule: Schedule | None
    when_exhausted: Exhaustion
    balance: float | None


class Run:
    """Gives the orders, plans and states of a dataset's streams.

    Defaults that depend on the topology are final with the first pass (`freeze_defaults`), or with the state that is
    resumed. Until then they follow the topology that is asked for.
    """

    def __init__(
        self,
        streams: Sequence[StreamSize],
        asked: OrderConfig,
        *,
        epoch_size: int | None = None,
        schedule: Schedule | None = None,
        when_exhausted: Exhaustion = 'repeat',
        on_mixture_change: MixtureChange = 'refuse',
        skip: Skip = (),
        load: LoadPermutation | None = None,
        costs: Costs | None = None,
        balance: float | None = None,
        decisions: Sequence[Decision] = (),
    ) -> None:
        """Arguments as those of `Mixture.resolve`, `make_order` and `make_plan`, and so are errors.

        ``balance``: the power of a row's cost by which rows are dealt to replicas; None: by position. ``decisions``: of
        an earlier run, to be repeated.
        """
        if on_mixture_change not in get_args(MixtureChange):
            raise ConfigError(
                f'on_mixture_change must be one of {list(get_args(MixtureChange))}, got {on_mixture_change!r}.'
            )
        check_balance(balance, asked)
        if costs is None and (asked.bucket is not None or balance is not None):
            raise ConfigError('`bucket`, `batch_cost` and `balance` need costs of samples. Name a column in `cost`.')
        if costs is not None and asked.bucket is not None:
            asked = replace(asked, costs=costs.digest)
            check_batch_cost(asked.batch_cost, costs, skip)
        self._streams, self._asked, self._costs, self._balance = tuple(streams), asked, costs, balance
        self._epoch_size, self._schedule = epoch_size, schedule
        self._when_exhausted: Exhaustion = when_exhausted
        self._may_change_mixture = on_mixture_change == 'continue'
        self._skip, self._load = skip, load
        self.mixture = self._mix(asked)  # The streams and what an epoch draws from each.
        self._frozen: OrderConfig | None = None
        self._initial_nodes: int | None = None
        self._start: tuple[object, ResumeState] | None = None  # State of this run at another position.
        self._foreign: tuple[int, int] | None = None  # Place of MosaicML Streaming's loaded state.
        self._dealt: tuple[int, tuple[int, ...]] | None = None  # Epoch and batches of the loaded state.
        self.last_batches: BatchSpec | None = None  # Those of the last plan.
        self._unchecked: Ranges = ()  # Ranges that a checkpoint's run skips, until batches are known.
        self._counted: tuple[BatchSpec, int] | None = None  # Batches of an epoch.
        self._order: tuple[object, Order] | None = None
        self._given = tuple(decisions)
        self.decisions: tuple[Decision, ...] = self._given
        """All that are known, in the order of their positions; those ahead, too."""
        self._stages = [self.mixture]  # Mixtures that decisions make of it follow.
        self._staged: OrderConfig | None = None  # Their configuration.
        self._applied = 0  # Decisions in these mixtures.
        self._since = 0  # Samples of the run before a takeover.
        if decisions:
            self._check_decisions(asked)
            if not are_of(decisions, base_digest(self.mixture, asked.seed, 0)):
                raise ConfigError(f'{_OTHER_RUN} Give the streams, weights, seed and data of that run.')

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_order': None}  # it may hold much, and is quickly made

    def _mix(self, config: OrderConfig) -> Mixture:
        return Mixture.resolve(
            self._streams,
            epoch_size=self._epoch_size,
            seed=config.seed,
            schedule=self._schedule,
            when_exhausted=self._when_exhausted,
        )

    @property
    def asked(self) -> RunArguments:
        """The arguments that it was made with, beside streams and `skip`."""
        return RunArguments(self._asked, self._epoch_size, self._schedule, self._when_exhausted, self._balance)

    @property
    def needs_nodes(self) -> bool:
        """Whether the order depends on the nodes of the parallel world, and is not frozen yet."""
        return self._frozen is None and self._asked.is_mosaicml

    @property
    def needs_batch_size(self) -> bool:
        """Whether the order depends on the global batch size."""
        return (self._frozen or self._asked).has_batches

    @property
    def needs_replicas(self) -> bool:
        """Whether the order depends on the ranks that share a global batch, and is not frozen yet."""
        config = self._frozen or self._asked
        return self.needs_batch_size and config.batching == 'device_per_stream' and config.device_batches is None

    @property
    def is_dealt(self) -> bool:
        """Whether batches depend on the ranks in the middle of an epoch, so that a state says them."""
        config = self._frozen or self._asked
        return config.is_mosaicml and config.batching != 'random'

    def config(self, world: World = _UNKNOWN) -> OrderConfig:
        """How samples are ordered, with every default filled in.

        Raises:
            ConfigError: the global batch does not suit the canonical nodes.
        """
        config = self._asked if self._frozen is None else self._frozen
        if world.global_batch_size is not None:
            config = config.for_batches(world.global_batch_size, world.replicas)
        return config.resolve_defaults(self.mixture, world.nodes)

    def initial_nodes(self, nodes: int) -> int:
        """Nodes that the run began on, or begins on."""
        return nodes if self._initial_nodes is None else self._initial_nodes

    def freeze_defaults(self, world: World) -> None:
        if self._frozen is None:
            self._frozen, self._initial_nodes = self.config(world), world.nodes

    def order(self, epoch: int, world: World = _UNKNOWN) -> Order:
        """The global sequence of an epoch.

        It is one object for all who ask for the same, so that they share what it keeps.

        Raises:
            ConfigError: the order depends on the batch size, which is not known.
        """
        config = self.config(world)
        if self.needs_batch_size and config.global_batch_size is None:
            raise ConfigError(
                f'Please pass `batch_size` to StreamingDataset: {_batches_by(config)} depends on it, and it is None.'
            )
        if config.is_mosaicml:  # each user maps its permutation, and no longer than needed
            return make_order(self.mixture, config, epoch, self._load)
        if self._order is None or self._order[0] != (config, epoch):
            mixture, *later = self._mixtures_of(epoch, config)
            self._order = (config, epoch), make_order(mixture, config, epoch, costs=self._costs, later=later)
        return self._order[1]

    def _mixtures_of(self, epoch: int, config: OrderConfig) -> list[Mixture]:
        """The mixture with which an epoch begins, and those that decisions make of it there."""
        self._apply_until((epoch + 1, -1), config)
        begun = bisect_right(self._stages, (epoch, 0), key=_begin)
        first, *later = self._stages[max(begun - 1, 0) :]
        return [first, *(one for one in later if one.takeover.epoch == epoch)]

    def _mixture_at(self, epoch: int, sample: int, config: OrderConfig) -> Mixture:
        """The mixture at a position of an epoch."""
        self._apply_until((epoch, sample), config)
        begun = bisect_right(self._stages, (epoch, sample), key=_begin)
        return self._stages[max(begun - 1, 0)]

    def _apply_until(self, place: tuple[int, int], config: OrderConfig) -> None:
        """Make the mixtures of decisions at or before an epoch and a position in it."""
        if config != self._staged:  # such as batches of another size, which a plan was asked for
            self._staged, self._stages = config, self._stages[:1]
        while len(self._stages) <= len(self.decisions) - self._applied:
            known = self._applied + len(self._stages)
            last, at = self._stages[-1], self.decisions[known - 1].at
            epoch, sample = place_of(last, at)
            if (epoch, sample) > place:
                return
            if self._until_unit(epoch, sample, config):
                raise ConfigError(
                    f'{_batches_by(config)} changes proportions only where windows or epochs end, but a decision is at '
                    f'sample {at}. Give the options of the run that decided.'
                )
            to = decided(last, self.decisions[known - 1])
            self._stages.append(taken_over(last, to, at, config))

    def _until_unit(self, epoch: int, sample: int, config: OrderConfig) -> int:
        """Samples until the next position at which a mixture may change."""
        if config.bucket is None:
            return 0
        size = self.mixture.epoch_size
        begin = self.mixture.takeover.sample if epoch == self.mixture.takeover.epoch else 0
        unit = size if config.batch_cost is not None else config.bucket * (config.global_batch_size or 1)
        return min((begin - sample) % unit, size - sample) if sample else 0

    def decide(
        self,
        place: tuple[int, int],
        proportions: Mapping[str, float],
        by: str,
        world: World,
        check: Callable[[Mixture], object] | None = None,
    ) -> Decision:
        """Change the proportions of the streams from a position on, or from the next one at which that is possible.

        Args:
            place: the epoch, and the position in it.
            proportions: of every stream.
            by: who decides.
            world: the ranks of now.
            check: may refuse the mixture, before anything changes.

        Raises:
            ConfigError: proportions are out of range or do not name every stream; or this kind of run cannot change
                them; or it repeats decisions beyond that position.
        """
        config, (epoch, sample) = self.config(world), place
        self._check_decisions(config)
        mixture = self._mixture_at(epoch, sample, config)
        begin = mixture.takeover.begin_of(epoch, mixture.epoch_size)
        at = begin + sample + self._until_unit(epoch, sample, config)
        if self._given and at <= self._given[-1].at:
            raise ConfigError(
                f'this run repeats decisions up to sample {self._given[-1].at}, and takes no other one at {at}. Leave '
                f'out what decides, or `decisions`.'
            )
        at = max(at, self.decisions[-1].at) if self.decisions else at  # one may lie ahead of a checkpoint
        last = self.decisions[-1].digest if self.decisions else base_digest(self._mix(config), config.seed, self._since)
        what = {'proportions': shares_of(proportions)}
        decision = Decision.after(last, at, what, by)
        epoch, sample = place_of(mixture, at)
        mixture = taken_over(self._mixture_at(epoch, sample, config), decided(mixture, decision), at, config)
        make_order(mixture, config, epoch)  # refuses shares that batches of one stream cannot have
        if check is not None:
            check(mixture)
        self.decisions = *self.decisions, decision
        self._start = self._order = None
        return decision

    def know(self, decisions: tuple[Decision, ...]) -> None:
        """Take the decisions of the same run in another process."""
        if decisions != self.decisions:
            known = len(self.decisions)
            if known and (len(decisions) < known or decisions[known - 1].digest != self.decisions[-1].digest):
                self._stages = self._stages[:1]  # the run was set back, and has decided differently since
            self.decisions = decisions
            self._start = self._order = None

    def _check_decisions(self, config: OrderConfig) -> None:
        """Refuse decisions where they would not be exact."""
        for is_so, what, fix in (
            (config.is_mosaicml, f'shuffle_algo {config.algorithm!r}', "Leave `shuffle_algo` out, or choose 'native'"),
            (self._schedule is not None, 'a `schedule`', 'Remove it'),
            (self._when_exhausted != 'repeat', f'when_exhausted {self._when_exhausted!r}', "Choose 'repeat'"),
            (config.sampling == 'fixed', "sampling_method 'fixed'", "Choose 'balanced'"),
            (
                not config.shuffle and config.batching == 'random',
                "streams that come one after the other, as without `shuffle` and with batching_method 'random'",
                "Shuffle, or choose 'stratified'",
            ),
        ):
            if is_so:
                raise ConfigError(f'proportions cannot be decided in a run with {what}. {fix}, in a new run.')

    def plan(self, epoch: int, start: int, batches: BatchSpec) -> BatchPlan:
        """The global batches of an epoch from a position on, and one rank's rows of them.

        Raises:
            ConfigError: as `make_plan`; or batches that the order depends on shall have another size in the middle of
                the run.
            ResumeError: the checkpoint's run skips samples that this one does not.
        """
        size = batches.global_batch_size
        frozen = None if self._frozen is None else self._frozen.global_batch_size
        if (epoch, start) != (0, 0) and frozen not in (None, size):
            raise ConfigError(
                f'with {_batches_by(self._asked)} the global batch keeps its size during a run, which began with '
                f"{frozen}, but got {size}. Resume from a checkpoint with on_mixture_change='continue' to change it."
            )
        order = self.order(epoch, batches.world)
        if start and self._dealt is not None and self._dealt[0] == epoch:
            order.check_dealt(self._dealt[1], batches, self._initial_nodes)
        plan = order.plan(batches, start, epoch=epoch, skip=self._skip, initial_nodes=self._initial_nodes)
        if self._foreign == (epoch, start) and self._asked.batching == 'random' and plan.stop > start:
            size, ranks = self.mixture.epoch_size, batches.topology.replicas
            if start > size + ranks - size % ranks:  # as MosaicML Streaming
                raise ResumeError(f'a run resumes inside an epoch of {size} samples, got position {start}.')
        if self._unchecked:
            check_skipped(self._unchecked, self._skipped_ranges(self.mixture, batches) or ())
        self._unchecked, self.last_batches = (), batches
        if self._balance is not None and self._costs is not None:
            check_balance(self._balance, self.config(batches.world))  # a checkpoint may have named the order
            assert isinstance(plan, Plan)
            fields_ = {one.name: getattr(plan, one.name) for one in fields(plan) if one.init}
            return BalancedPlan(**fields_, costs=self._costs, power=self._balance)
        return plan

    def length_waste(self, plan: BatchPlan) -> LengthWaste | None:
        """The waste of one of its plans by different costs; None: no costs are known, or there is no batch."""
        return None if self._costs is None else LengthWaste.of(plan, self.config(), self._costs)

    def state(self, epoch: int, sample: int, world: World, batches: BatchSpec | None = None) -> ResumeState:
        """The state that continues at a position of an epoch.

        Args:
            epoch: which epoch.
            sample: the position in it.
            world: the ranks of now.
            batches: how the sequence is cut into batches; None: as in the last plan.
        """
        batches = batches or self.last_batches
        ranges = self._skipped_ranges(self.mixture, batches) or ()
        config, dealt = self.config(world), ()
        if batches is not None and self.is_dealt:
            dealt = batches.topology.nodes, batches.topology.replicas, batches.global_batch_size
        mixture = self._mixture_at(epoch, sample, config) if self.decisions else self.mixture
        if self._start is not None and self._start[0] == (ranges, dealt, mixture):
            return replace(self._start[1], epoch=epoch, sample_in_epoch=sample)
        state = ResumeState.of(
            config,
            mixture,
            epoch=epoch,
            sample_in_epoch=sample,
            initial_physical_nodes=self.initial_nodes(world.nodes),
            skip=ranges,
            dealt=dealt,
            decisions=self.decisions,
            since=self._since,
        )
        if self._frozen is not None:
            self._start = (ranges, dealt, mixture), state
        return state

    def _skipped_ranges(self, mixture: Mixture, batches: BatchSpec | None) -> Ranges | None:
        """The skipped positions of the run; None: that depends on batches, which are not known."""
        if batches is None and any(bound.unit == 'ba' for bounds in self._skip for bound in bounds):
            return None
        if batches is None:
            return skipped_ranges(self._skip, mixture, 1, 'repeat')
        size, remainder = batches.global_batch_size, batches.remainder
        return skipped_ranges(self._skip, mixture, size, remainder, self._epoch_batches(mixture, batches))

    def _epoch_batches(self, mixture: Mixture, batches: BatchSpec) -> int | None:
        """Batches of an epoch, where repeats make it longer than its samples, or dropped samples shorter."""
        config = self.config(World(batches.topology.nodes))
        if not self._skip or not config.is_mosaicml:
            return None
        if self._counted is None or self._counted[0] != batches:
            plan = make_order(mixture, config, 0).plan(batches, initial_nodes=self._initial_nodes)
            self._counted = batches, plan.epoch_rows
        return self._counted[1]

    def forget_topology(self) -> None:
        """Have the next state ask the topology again."""
        self._start = None

    def resume(self, state: ResumeState, world: World, *, may_change_mixture: bool = False) -> tuple[int, int]:
        """Go on where a state was taken, which is no stale one; returns the epoch and the position in it.

        Raises:
            ResumeError: it belongs to other data, another order, or a mixture that may not change; or its run skips
                samples that this one does not.
        """
        may_change = may_change_mixture or self._may_change_mixture
        unchecked = () if may_change else state.skipped_ranges
        config = self._config_from(state, world)
        decisions, since = self._decisions_from(state, config)
        origin = state.takeover
        applied = [one for one in decisions if one.at <= origin.begin + origin.sample] if origin.positions else []
        now = self._mix(config)
        now = decided(now, applied[-1]) if applied else now
        mixture, state = resume(state, config, now, may_change_mixture=may_change)
        if state.has_mosaicmls_order:
            warn_of_overruled(self._asked, config)
        ranges = self._skipped_ranges(mixture, None)
        if ranges is not None:
            check_skipped(unchecked, ranges)
        self._unchecked = unchecked if ranges is None else ()
        self.mixture, self._frozen = mixture, config.resolve_defaults(mixture, world.nodes)
        self.decisions, self._applied, self._stages = decisions, len(applied), [mixture]
        takeover = mixture.takeover
        self._since = since if decisions or not takeover.positions else takeover.begin + takeover.sample
        self._initial_nodes = state.initial_physical_nodes or world.nodes
        self._start = self._order = None
        self._dealt = (state.epoch, state.dealt) if state.dealt else None
        self._foreign = (state.epoch, state.sample_in_epoch) if state.version is None else None
        return state.epoch, state.sample_in_epoch

    def _decisions_from(self, state: ResumeState, config: OrderConfig) -> tuple[tuple[Decision, ...], int]:
        """The decisions of a state and of this run, and the samples of the run before the mixture that they change."""
        found, since = state.decisions
        if found and not are_of(found, base_digest(self._mix(config), config.seed, since)):
            if not self._may_change_mixture:
                raise ResumeError(
                    f'{_OTHER_RUN} Restore the streams, weights and data that the run of the checkpoint began with, or '
                    f"pass on_mixture_change='continue' to continue with the mixture of now."
                )
            warn(
                f'The mixture of now takes the place of the one that the checkpoint decided: {len(found)} decisions, '
                f'the last by {found[-1].by!r} at sample {found[-1].at}, end here.',
                stacklevel=2,
            )
            found, since = (), 0
        shared = min(len(found), len(self._given))
        begin = state.takeover.begin_of(state.epoch, state.epoch_size or 0) + state.sample_in_epoch
        missed = [one for one in self._given[shared:] if one.at < begin]
        if found[:shared] != self._given[:shared] or missed:
            raise ResumeError(
                f'the checkpoint at sample {begin} of the run belongs to other decisions than `decisions`: it has '
                f'{[one.at for one in found][-8:]}, given are {[one.at for one in self._given][-8:]}. Give those of '
                f'its run, or leave `decisions` out.'
            )
        if self._given:
            self._check_decisions(config)
        return max(found, self._given, key=len), since

    def _config_from(self, state: ResumeState, world: World) -> OrderConfig:
        config = resolved_from_state(self._asked, state)
        size = world.global_batch_size or state.pinned.get('global_batch_size')
        if config.has_batches and size is not None:
            devices = state.pinned.get('device_batches')
            config = replace(config, device_batches=devices).for_batches(size, world.replicas)
        return config

    def changed_mixture(self, state: ResumeState, world: World) -> tuple[Mixture, OrderConfig] | None:
        """The mixture and order in which the run continues from a state; None: those of the state.

        Raises:
            ResumeError: as `resume`.
        """
        config = self._config_from(state, world)
        mixture = self._mix(config)
        config = config.resolve_defaults(mixture)
        return (mixture, config) if state.check(config, mixture, may_change_mixture=self._may_change_mixture) else None


def _begin(mixture: Mixture) -> tuple[int, int]:
    return mixture.takeover.epoch, mixture.takeover.sample


def _batches_by(config: OrderConfig) -> str:
    """The setting by which the order depends on the batch size."""
    if config.bucket is None:
        return f'{config.batching} batching'
    return '`bucket`' if config.batch_cost is None else '`batch_cost`'


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
    family = _FAMILIES.get(str(config.algorithm))
    if family is None:
        raise UnknownNameError(f'shuffle_algo must be one of {sorted(_FAMILIES)}, got {config.algorithm!r}.')
    if later:
        return DecidedOrder([mixture, *later], lambda mixture: make_order(mixture, config, epoch, costs=costs), epoch)
    if config.bucket is not None and costs is not None:
        inner = NativeOrder(mixture, replace(config, bucket=None, batch_cost=None), epoch)
        return BucketedOrder(inner, config, costs)
    return family(mixture, config, epoch, load)


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
