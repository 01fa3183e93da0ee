"""A run through the data: its orders, the plans of its passes, and the states of its checkpoints, as a value."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from headrace.errors import ConfigError, ResumeError
from headrace.errors.exclusions import refuse_exclusions
from headrace.errors.redaction import warn
from headrace.order.config import ORDER_ARGUMENTS
from headrace.order.decisions import (
    Decision,
    are_of,
    base_digest,
    decided,
    place_of,
    shares_of,
    taken_over,
)
from headrace.order.length_waste import LengthWaste
from headrace.order.lengths import BalancedPlan, check_balance, check_batch_cost
from headrace.order.mixture.mixture import Exhaustion, Mixture, StreamSize
from headrace.order.mosaicml.order import check_dealt
from headrace.order.orders import make_order
from headrace.order.plan import Plan
from headrace.order.resume import check_skipped, resolved_from_state, resume, warn_of_overruled
from headrace.order.skip import skipped_ranges
from headrace.order.state import ResumeState
from headrace.order.topology import BatchSpec, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from headrace.order.config import OrderConfig
    from headrace.order.lengths import Costs
    from headrace.order.mixture.schedule import Schedule
    from headrace.order.protocols import BatchPlan, LoadPermutation, Order
    from headrace.order.skip import Ranges, Skip

MixtureChange: TypeAlias = Literal['refuse', 'continue']
"""The reaction to a checkpoint of another mixture: an error, or its streams continue in the new one."""


_UNKNOWN = World()
_OTHER_RUN = 'the decisions belong to a run that began with other streams, weights or data, or with another seed.'


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunArguments:
    """The settings of a run: those of `Mixture.resolve`, `make_order` and `make_plan`, and what a resume may change."""

    streams: tuple[StreamSize, ...]
    order: OrderConfig
    epoch_size: int | None = None
    schedule: Schedule | None = None
    when_exhausted: Exhaustion = 'repeat'
    on_mixture_change: MixtureChange = 'refuse'
    skip: Skip = ()
    load: LoadPermutation | None = None
    costs: Costs | None = None
    balance: float | None = None
    """The power of a row's cost by which rows are dealt to replicas. If None, they are dealt by position."""
    decisions: tuple[Decision, ...] = ()
    """Those of an earlier run, which this one repeats."""

    def mix(self, seed: int) -> Mixture:
        return Mixture.resolve(
            self.streams,
            epoch_size=self.epoch_size,
            seed=seed,
            schedule=self.schedule,
            when_exhausted=self.when_exhausted,
        )


class _Derived:
    """Values that follow from a run and are slow to compute. It is made again in another process."""

    __slots__ = ('batches', 'config', 'mixtures', 'order', 'state')

    def __init__(self, mixtures: list[Mixture], config: OrderConfig | None = None) -> None:
        self.mixtures, self.config = mixtures, config  # those that decisions make of the first, in that configuration
        self.order: tuple[object, Order] | None = None
        self.state: tuple[object, ResumeState] | None = None
        self.batches: tuple[BatchSpec, int] | None = None  # of an epoch


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The orders, plans and states of a dataset's streams, as a value.

    Each change returns a new run: the first pass (`begun`), a checkpoint (`resumed`), and decided proportions
    (`with_decision`). A call that raises leaves everything as it was. Defaults that depend on the topology follow the
    topology in each call until the first pass, or until a state is resumed.
    """

    settings: RunArguments
    mixture: Mixture
    """The streams, and what an epoch draws from each."""
    frozen: OrderConfig | None = None
    """The order with all defaults, from the first pass on."""
    began_on: int | None = None
    """Nodes of the run's first pass."""
    decisions: tuple[Decision, ...] = ()
    """All decisions in the order of their positions, also those that lie ahead."""
    applied: int = 0
    """Decisions that `mixture` contains."""
    since: int = 0
    """Samples of the run before another mixture took over."""
    unchecked: Ranges = ()
    """Ranges that the checkpoint's run skips, until the batches are known in which this run counts its own."""
    dealt: tuple[int, tuple[int, ...]] | None = None
    """Epoch and batches of the loaded state, where batches depend on the ranks."""
    foreign: tuple[int, int] | None = None
    """Place of a loaded state of MosaicML Streaming."""
    _derived: _Derived = field(init=False, repr=False)

    @classmethod
    def of(
        cls,
        streams: Sequence[StreamSize],
        order: OrderConfig,
        *,
        on_mixture_change: MixtureChange = 'refuse',
        skip: Skip = (),
        costs: Costs | None = None,
        balance: float | None = None,
        decisions: Sequence[Decision] = (),
        **settings: Any,
    ) -> Run:
        """A run from its beginning. Arguments are the fields of `RunArguments`.

        Raises:
            ConfigError: as `Mixture.resolve` and `make_order`; or costs, decisions or names do not go with the rest.
        """
        if on_mixture_change not in get_args(MixtureChange):
            raise ConfigError(
                f'on_mixture_change must be one of {list(get_args(MixtureChange))}, got {on_mixture_change!r}.'
            )
        check_balance(balance, order)
        if costs is None and (order.bucket is not None or balance is not None):
            raise ConfigError('`bucket`, `batch_cost` and `balance` need costs of samples. Name a column in `cost`.')
        if costs is not None and order.bucket is not None:
            order = replace(order, costs=costs.digest)
            check_batch_cost(order.batch_cost, costs, skip)
        arguments = RunArguments(
            streams=tuple(streams),
            order=order,
            on_mixture_change=on_mixture_change,
            skip=skip,
            costs=costs,
            balance=balance,
            decisions=tuple(decisions),
            **settings,
        )
        run = cls(settings=arguments, mixture=arguments.mix(order.seed), decisions=arguments.decisions)
        if decisions:
            run._check_decisions(order)
            if not are_of(decisions, base_digest(run.mixture, order.seed, 0)):
                raise ConfigError(f'{_OTHER_RUN} Give the streams, weights, seed and data of that run.')
        return run

    def __post_init__(self) -> None:
        object.__setattr__(self, '_derived', _Derived([self.mixture]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_derived': _Derived([self.mixture])}

    @property
    def needs_nodes(self) -> bool:
        """Whether the order depends on the nodes of the parallel world, and is not frozen yet."""
        return self.frozen is None and self.settings.order.family.nodes > 0

    @property
    def needs_batch_size(self) -> bool:
        """Whether the order depends on the global batch size."""
        return (self.frozen or self.settings.order).has_batches

    @property
    def needs_replicas(self) -> bool:
        """Whether the order depends on the ranks that share a global batch, and is not frozen yet."""
        config = self.frozen or self.settings.order
        return self.needs_batch_size and config.batching == 'device_per_stream' and config.device_batches is None

    @property
    def is_dealt(self) -> bool:
        """Whether batches depend on the ranks in the middle of an epoch, so that a state says them."""
        config = self.frozen or self.settings.order
        return config.family.deals_batches and config.batching != 'random'

    def config(self, world: World = _UNKNOWN) -> OrderConfig:
        """How samples are ordered, with every default filled in.

        Raises:
            ConfigError: the global batch does not suit the canonical nodes.
        """
        config = self.settings.order if self.frozen is None else self.frozen
        if world.global_batch_size is not None:
            config = config.for_batches(world.global_batch_size, world.replicas)
        return config.resolve_defaults(self.mixture, world.nodes)

    @property
    def proportions(self) -> Mapping[str, float]:
        """The streams' shares by name, as they were decided last."""
        if self.decisions:
            return self.decisions[-1].what['proportions']
        names = [stream.name for stream in self.mixture.streams]
        return dict(zip(names, self.mixture.proportions, strict=True))

    def initial_nodes(self, nodes: int) -> int:
        """Nodes that the run began on, or begins on."""
        return nodes if self.began_on is None else self.began_on

    def with_defaults(self, world: World) -> Self:
        """The run with the defaults that follow from its first pass."""
        if self.frozen is not None:
            return self
        return replace(self, frozen=self.config(world), began_on=world.nodes)

    def begun(self, batches: BatchSpec) -> Self:
        """The run as a pass over such batches begins; the same run again in later passes.

        Raises:
            ResumeError: the checkpoint's run skips samples that this one does not.
        """
        run = self.with_defaults(batches.world)
        run._check_unchecked(batches)
        return replace(run, unchecked=()) if run.unchecked else run

    def _check_unchecked(self, batches: BatchSpec) -> None:
        if self.unchecked:
            check_skipped(self.unchecked, self._skipped_ranges(self.mixture, batches) or ())

    def order(self, epoch: int, world: World = _UNKNOWN) -> Order:
        """The global sequence of an epoch.

        It is one object for all who ask for the same, so that they share what it keeps.

        Raises:
            ConfigError: the order depends on the batch size, which is not known.
        """
        config, derived = self.config(world), self._derived
        if self.needs_batch_size and config.global_batch_size is None:
            raise ConfigError(
                f'Please pass `batch_size` to StreamingDataset: {_batches_by(config)} depends on it, and it is None.'
            )
        if config.family.permutation:  # each user maps what it fills, and no longer than needed
            return make_order(self.mixture, config, epoch, self.settings.load)
        if derived.order is None or derived.order[0] != (config, epoch):
            mixture, *later = self._mixtures_of(epoch, config)
            order = make_order(mixture, config, epoch, costs=self.settings.costs, later=later)
            derived.order = (config, epoch), order
        return derived.order[1]

    def _mixtures_of(self, epoch: int, config: OrderConfig) -> list[Mixture]:
        """The mixture with which an epoch begins, and those that decisions make of it there."""
        mixtures = self._mixtures_until((epoch + 1, -1), config)
        begun = bisect_right(mixtures, (epoch, 0), key=_begin)
        first, *later = mixtures[max(begun - 1, 0) :]
        return [first, *(mixture for mixture in later if mixture.takeover.epoch == epoch)]

    def _mixture_at(self, epoch: int, sample: int, config: OrderConfig) -> Mixture:
        """The mixture at a position of an epoch."""
        mixtures = self._mixtures_until((epoch, sample), config)
        begun = bisect_right(mixtures, (epoch, sample), key=_begin)
        return mixtures[max(begun - 1, 0)]

    def _mixtures_until(self, place: tuple[int, int], config: OrderConfig) -> list[Mixture]:
        """The mixtures up to an epoch and a position in it, and perhaps later ones, as decisions make them."""
        derived = self._derived
        if config != derived.config:  # such as batches of another size, which a plan was asked for
            derived.config, derived.mixtures = config, derived.mixtures[:1]
        mixtures = derived.mixtures
        while len(mixtures) <= len(self.decisions) - self.applied:
            last, decision = mixtures[-1], self.decisions[self.applied + len(mixtures) - 1]
            epoch, sample = place_of(last, decision.at)
            if (epoch, sample) > place:
                break
            if self._until_unit(epoch, sample, config):
                raise ConfigError(
                    f'{_batches_by(config)} changes proportions only where windows or epochs end, but a decision is at '
                    f'sample {decision.at}. Give the options of the run that decided.'
                )
            mixtures.append(taken_over(last, decided(last, decision), decision.at, config))
        return mixtures

    def _until_unit(self, epoch: int, sample: int, config: OrderConfig) -> int:
        """Samples until the next position at which a mixture may change."""
        size = self.mixture.epoch_size
        begin = self.mixture.takeover.sample if epoch == self.mixture.takeover.epoch else 0
        return min((begin - sample) % config.takeover_unit(size), size - sample) if sample else 0

    def with_decision(
        self,
        place: tuple[int, int],
        proportions: Mapping[str, float],
        by: str,
        world: World,
        check: Callable[[Mixture], object] | None = None,
    ) -> Self:
        """The run with other proportions from a position on, or from the next one at which they can change.

        Its last decision is the new one.

        Args:
            place: the epoch, and the position in it.
            proportions: of every stream.
            by: who decides.
            world: the current ranks.
            check: may refuse the mixture.

        Raises:
            ConfigError: proportions are out of range or do not name every stream; or this kind of run cannot change
                them; or it repeats decisions beyond that position.
        """
        config, (epoch, sample), given = self.config(world), place, self.settings.decisions
        self._check_decisions(config)
        mixture = self._mixture_at(epoch, sample, config)
        begin = mixture.takeover.begin_of(epoch, mixture.epoch_size)
        at = begin + sample + self._until_unit(epoch, sample, config)
        if given and at <= given[-1].at:
            raise ConfigError(
                f'this run repeats decisions up to sample {given[-1].at}, so it cannot take another one at {at}. '
                f'Remove `decisions`, or whatever decides.'
            )
        at = max(at, self.decisions[-1].at) if self.decisions else at  # one may lie ahead of a checkpoint
        last = self.decisions[-1].digest if self.decisions else self._base_digest(config)
        decision = Decision.after(last, at, {'proportions': shares_of(proportions)}, by)
        epoch, sample = place_of(mixture, at)
        mixture = taken_over(self._mixture_at(epoch, sample, config), decided(mixture, decision), at, config)
        make_order(mixture, config, epoch)  # refuses shares that batches of one stream cannot have
        if check is not None:
            check(mixture)
        return self.with_decisions((*self.decisions, decision))

    def with_decisions(self, decisions: tuple[Decision, ...]) -> Self:
        """The run with all decisions that were taken in another process."""
        if decisions == self.decisions:
            return self
        run, shared = replace(self, decisions=decisions), min(len(decisions), len(self.decisions))
        if shared and decisions[shared - 1].digest == self.decisions[shared - 1].digest:  # so are those before it
            derived = self._derived
            run._derived.mixtures = derived.mixtures[: max(shared - self.applied, 0) + 1]
            run._derived.config = derived.config
        return run

    def _base_digest(self, config: OrderConfig) -> str:
        return base_digest(self.settings.mix(config.seed), config.seed, self.since)

    def _check_decisions(self, config: OrderConfig) -> None:
        """Refuse decisions where they would not be exact."""
        options = {option: getattr(config, name) for option, name in ORDER_ARGUMENTS.items()}
        of_mixture = {'schedule': self.settings.schedule, 'when_exhausted': self.settings.when_exhausted}
        refuse_exclusions({**options, **of_mixture, 'decisions': True})

    def plan(self, epoch: int, start: int, batches: BatchSpec) -> BatchPlan:
        """The global batches of an epoch from a position on, and one rank's rows of them.

        Raises:
            ConfigError: as `make_plan`; or batches that the order depends on shall have another size in the middle of
                the run.
            ResumeError: the checkpoint's run skips samples that this one does not.
        """
        size = batches.global_batch_size
        frozen = None if self.frozen is None else self.frozen.global_batch_size
        if (epoch, start) != (0, 0) and frozen not in (None, size):
            raise ConfigError(
                f'with {_batches_by(self.settings.order)} the global batch keeps its size during a run, which began '
                f'with {frozen}, but got {size}. To change it, resume from a checkpoint with '
                "on_mixture_change='continue'."
            )
        order = self.order(epoch, batches.world)
        if start and self.dealt is not None and self.dealt[0] == epoch:
            check_dealt(self.mixture, self.config(batches.world), self.dealt[1], batches, self.began_on)
        plan = order.plan(batches, start, epoch=epoch, skip=self.settings.skip, initial_nodes=self.began_on)
        if self.foreign == (epoch, start) and self.settings.order.batching == 'random' and plan.stop > start:
            size, ranks = self.mixture.epoch_size, batches.topology.replicas
            if start > size + ranks - size % ranks:  # as MosaicML Streaming
                raise ResumeError(f'a run resumes inside an epoch of {size} samples, got position {start}.')
        self._check_unchecked(batches)
        balance, costs = self.settings.balance, self.settings.costs
        if balance is not None and costs is not None:
            check_balance(balance, self.config(batches.world))  # a checkpoint may have named the order
            assert isinstance(plan, Plan)
            values = {value.name: getattr(plan, value.name) for value in fields(plan) if value.init}
            return BalancedPlan(**values, costs=costs, power=balance)
        return plan

    def length_waste(self, plan: BatchPlan) -> LengthWaste | None:
        """The waste of one of its plans by different costs; None if no costs are known, or there is no batch."""
        return None if self.settings.costs is None else LengthWaste.of(plan, self.config(), self.settings.costs)

    def state(self, epoch: int, sample: int, world: World, batches: BatchSpec | None = None) -> ResumeState:
        """The state that continues at a position of an epoch.

        Args:
            epoch: which epoch.
            sample: the position in it.
            world: the current ranks.
            batches: how the sequence is cut into batches, if that is known.
        """
        ranges = self._skipped_ranges(self.mixture, batches) or ()
        config, dealt, derived = self.config(world), (), self._derived
        if batches is not None and self.is_dealt:
            dealt = batches.topology.nodes, batches.topology.replicas, batches.global_batch_size
        mixture = self._mixture_at(epoch, sample, config) if self.decisions else self.mixture
        key = ranges, dealt, mixture, config, world.nodes
        if derived.state is not None and derived.state[0] == key:
            return replace(derived.state[1], epoch=epoch, sample_in_epoch=sample)
        state = ResumeState.of(
            config,
            mixture,
            epoch=epoch,
            sample_in_epoch=sample,
            initial_physical_nodes=self.initial_nodes(world.nodes),
            skip=ranges,
            dealt=dealt,
            decisions=self.decisions,
            since=self.since,
        )
        derived.state = key, state
        return state

    def _skipped_ranges(self, mixture: Mixture, batches: BatchSpec | None) -> Ranges | None:
        """The skipped positions of the run; None if that depends on batches, which are not known."""
        skip = self.settings.skip
        if batches is None and any(bound.unit == 'ba' for bounds in skip for bound in bounds):
            return None
        if batches is None:
            return skipped_ranges(skip, mixture, 1, 'repeat')
        size, remainder = batches.global_batch_size, batches.remainder
        return skipped_ranges(skip, mixture, size, remainder, self._epoch_batches(mixture, batches))

    def _epoch_batches(self, mixture: Mixture, batches: BatchSpec) -> int | None:
        """Batches of an epoch, where repeats make it longer than its samples, or dropped samples shorter."""
        config, derived = self.config(World(batches.topology.nodes)), self._derived
        if not self.settings.skip or not config.family.counts_repeats:
            return None
        if derived.batches is None or derived.batches[0] != batches:
            plan = make_order(mixture, config, 0).plan(batches, initial_nodes=self.began_on)
            derived.batches = batches, plan.epoch_rows
        return derived.batches[1]

    def resumed(
        self, state: ResumeState, world: World, *, may_change_mixture: bool = False
    ) -> tuple[Self, tuple[int, int]]:
        """The run that continues where a state was taken, which is not stale; with the epoch and the position in it.

        Raises:
            ResumeError: it belongs to other data, another order, or a mixture that may not change; or its run skips
                samples that this one does not.
        """
        may_change = may_change_mixture or self.settings.on_mixture_change == 'continue'
        unchecked = () if may_change else state.skipped_ranges
        config = self._config_from(state, world)
        decisions, since = self._decisions_from(state, config)
        origin = state.takeover
        end = origin.begin + origin.sample
        applied = [decision for decision in decisions if decision.at <= end] if origin.positions else []
        now = self.settings.mix(config.seed)
        now = decided(now, applied[-1]) if applied else now
        mixture, state = resume(state, config, now, may_change_mixture=may_change)
        warn_of_overruled(self.settings.order, config)
        ranges = self._skipped_ranges(mixture, None)
        if ranges is not None:
            check_skipped(unchecked, ranges)
        takeover = mixture.takeover
        run = replace(
            self,
            mixture=mixture,
            frozen=config.resolve_defaults(mixture, world.nodes),
            began_on=state.initial_physical_nodes or world.nodes,
            decisions=decisions,
            applied=len(applied),
            since=since if decisions or not takeover.positions else takeover.begin + takeover.sample,
            unchecked=unchecked if ranges is None else (),
            dealt=(state.epoch, state.dealt) if state.dealt and config.family.deals_batches else None,
            foreign=(state.epoch, state.sample_in_epoch) if state.version is None else None,
        )
        return run, (state.epoch, state.sample_in_epoch)

    def _decisions_from(self, state: ResumeState, config: OrderConfig) -> tuple[tuple[Decision, ...], int]:
        """The decisions of a state and of this run, and the samples of the run before the mixture that they change."""
        (recorded, since), given = state.decisions, self.settings.decisions
        if recorded and not are_of(recorded, base_digest(self.settings.mix(config.seed), config.seed, since)):
            if self.settings.on_mixture_change == 'refuse':
                raise ResumeError(
                    f'{_OTHER_RUN} Restore the streams, weights and data that the run of the checkpoint began with, or '
                    f"pass on_mixture_change='continue' to continue with the configured mixture."
                )
            warn(
                f"Replacing the checkpoint's mixture with the configured one; its {len(recorded)} decisions, the last "
                f'by {recorded[-1].by!r} at sample {recorded[-1].at}, no longer apply.',
                stacklevel=2,
            )
            recorded, since = (), 0
        shared = min(len(recorded), len(given))
        begin = state.takeover.begin_of(state.epoch, state.epoch_size or 0) + state.sample_in_epoch
        is_missed = any(decision.at < begin for decision in given[shared:])
        if recorded[:shared] != given[:shared] or is_missed:
            raise ResumeError(
                f'the checkpoint at sample {begin} of the run belongs to other decisions than `decisions`: it has '
                f'{[decision.at for decision in recorded][-8:]}, given are {[decision.at for decision in given][-8:]}. '
                f'Give those of its run, or leave `decisions` out.'
            )
        if given:
            self._check_decisions(config)
        return max(recorded, given, key=len), since

    def _config_from(self, state: ResumeState, world: World) -> OrderConfig:
        config = resolved_from_state(self.settings.order, state)
        size = world.global_batch_size or state.pinned.get('global_batch_size')
        if config.has_batches and size is not None:
            devices = state.pinned.get('device_batches')
            config = replace(config, device_batches=devices).for_batches(size, world.replicas)
        return config

    def changed_mixture(self, state: ResumeState, world: World) -> tuple[Mixture, OrderConfig] | None:
        """The mixture and order in which the run continues from a state, if they are not those of the state.

        Raises:
            ResumeError: as `resumed`.
        """
        config = self._config_from(state, world)
        mixture = self.settings.mix(config.seed)
        config = config.resolve_defaults(mixture)
        may_change = self.settings.on_mixture_change == 'continue'
        return (mixture, config) if state.check(config, mixture, may_change_mixture=may_change) else None


def _begin(mixture: Mixture) -> tuple[int, int]:
    return mixture.takeover.epoch, mixture.takeover.sample


def _batches_by(config: OrderConfig) -> str:
    """The setting by which the order depends on the batch size."""
    if config.bucket is None:
        return f'{config.batching} batching'
    return '`bucket`' if config.batch_cost is None else '`batch_cost`'
