"""The position in a checkpoint, and the check that it belongs to this data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from headrace.errors import MissingStateKeyError, ResumeError
from headrace.order.config import MAX_CANONICAL_NODES, MAX_EPOCH_SIZE, ORDER_OPTIONS, is_count
from headrace.order.decisions import decisions_of
from headrace.order.families import family_of
from headrace.order.mixture.takeover import Takeover
from headrace.order.pinned import MAX_SEED, pinned_errors, read_pinned, short
from headrace.order.skip import merged

if TYPE_CHECKING:
    from headrace.order.config import OrderConfig
    from headrace.order.decisions import Decision
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.skip import Ranges

STATE_VERSION = 1

_TAKEN_OVER = ('shuffle_seed', 'num_canonical_nodes')  # from a checkpoint, where they are not given

# MosaicML Streaming's keys, with its spelling; both kinds of state have them.
_INTEGERS = {
    'epoch': (-1, 10**18),
    'sample_in_epoch': (0, 10**18),
    'num_canonical_nodes': (0, MAX_CANONICAL_NODES),
    'shuffle_seed': (0, MAX_SEED),
}
# Of `config`: these are compared by themselves, or not at all.
_NOT_COMPARED = ('streams', 'origin', 'skip', 'count', 'cuts', 'subset', 'dealt', 'decisions', 'decided_since')
_MAX_NODES = 1 << 20  # physical ones
_MAX_RUN = 1 << 61  # samples: 64 bits hold sums of two positions of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """A position of the global sequence, and what the sequence was made from. The same on every rank.

    MosaicML Streaming's states, five keys without ``headrace``, load too; ``version`` is then None.
    """

    epoch: int  # The epoch in progress; -1 in MosaicML's states from before the first pass, which say nothing.
    sample_in_epoch: int  # Position in that epoch: samples of the global sequence used so far, padding not counted.
    num_canonical_nodes: int  # Of the sequence; 0 if MosaicML's state was taken before it was known.
    shuffle_seed: int
    initial_physical_nodes: int | None = None
    """Nodes that the run began on; matters only to MosaicML's ``relaxed`` partition."""
    version: int | None = STATE_VERSION  # Version of this format; None: MosaicML's.
    epoch_size: int | None = None  # Samples in an epoch; None in MosaicML's states.
    config: str | None = None  # JSON of `pinned_config`; None in MosaicML's states.

    @classmethod
    def of(
        cls,
        config: OrderConfig,
        mixture: Mixture,
        *,
        epoch: int,
        sample_in_epoch: int,
        initial_physical_nodes: int = 1,
        skip: Ranges = (),
        dealt: tuple[int, ...] = (),
        decisions: Sequence[Decision] = (),
        since: int = 0,
    ) -> ResumeState:
        """The state of a run at a position.

        Args:
            config: how samples are ordered.
            mixture: the streams.
            epoch: the epoch in progress.
            sample_in_epoch: the position in it.
            initial_physical_nodes: nodes that the run began on.
            skip: the positions of the run that it skips.
            dealt: as the property.
            decisions: those of the run.
            since: samples of the run before the mixture that the first of them changed took over from another one.
        """
        config = config.resolve_defaults(mixture)
        return cls(
            epoch=epoch,
            sample_in_epoch=sample_in_epoch,
            num_canonical_nodes=config.num_canonical_nodes or 0,
            shuffle_seed=config.seed,
            initial_physical_nodes=initial_physical_nodes,
            epoch_size=mixture.epoch_size,
            config=pinned_config(config, mixture, skip, dealt, decisions, since),
        )

    @property
    def is_stale(self) -> bool:
        """Whether the state was taken before the first pass and holds no position."""
        return self.epoch < 0

    @property
    def pinned(self) -> dict[str, Any]:
        """The record of `pinned_config`; empty for MosaicML's states."""
        pinned = {} if self.config is None else json.loads(self.config)
        if pinned.get('sampling') == 'fixed' and 'subset' not in pinned and family_of(pinned['algorithm']).continues:
            pinned['sampling'] = 'balanced'  # which the native order was before it knew the other
        return pinned

    @property
    def count(self) -> int:
        """Samples of the epoch as the trainer counted them; fewer than the position if some were skipped before it."""
        return self.pinned.get('count', self.sample_in_epoch)

    def with_count(self, count: int) -> ResumeState:
        """The same state with the trainer's count of samples, recorded where it differs from the position."""
        if count == self.sample_in_epoch or self.config is None:
            return self
        pinned = {**json.loads(self.config), 'count': count}
        return replace(self, config=json.dumps(pinned, sort_keys=True, separators=(',', ':')))

    @property
    def takeover(self) -> Takeover:
        """Where the mixture took over from another one."""
        return Takeover.of(self.pinned.get('origin'))

    @property
    def dealt(self) -> tuple[int, ...]:
        """Nodes, replicas and samples of a global batch, where batches depend on them and they are known."""
        return tuple(self.pinned.get('dealt', ()))

    @property
    def decisions(self) -> tuple[tuple[Decision, ...], int]:
        """The run's decisions, and ``since`` as in `of`."""
        pinned = self.pinned
        return decisions_of(pinned.get('decisions', ())), pinned.get('decided_since', 0)

    @property
    def algorithm(self) -> str | None:
        """The algorithm of the order; MosaicML's states do not say theirs, whose default is py1e."""
        return 'py1e' if self.version is None else self.pinned.get('algorithm')

    @property
    def skipped_ranges(self) -> Ranges:
        """The positions of the run from this one on that the configuration skips."""
        pinned = self.pinned
        if 'skip' not in pinned:
            return ()
        at = self.takeover.begin_of(self.epoch, self.epoch_size or 0) + self.sample_in_epoch
        return merged((max(begin, at), end) for begin, end in pinned['skip'])

    def to_dict(self) -> dict[str, int | str]:
        """Return a flat dict of fixed keys with int or str values; MosaicML's states as MosaicML writes them."""
        state: dict[str, int | str] = {key: getattr(self, key) for key in _INTEGERS}
        if self.initial_physical_nodes is not None:
            state['initial_physical_nodes'] = self.initial_physical_nodes
        if self.version is not None:
            state['headrace'] = self.version
            state['epoch_size'] = self.epoch_size or 0
            state['config'] = self.config or '{}'
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any] | None) -> ResumeState:
        """Read a state of ours or of MosaicML Streaming. Keys that are not known are ignored.

        Raises:
            MissingStateKeyError: keys are missing; all are named.
            ResumeError: values have wrong types, or the version is not known; all are named.
        """
        if state is None:  # trainers save this for a loader without a state
            raise ResumeError('the checkpoint holds no position in the data: it was saved with a loader that has none.')
        if not isinstance(cast('object', state), Mapping):
            raise ResumeError(f'a dataset state must be a mapping, got {short(state)}.')
        version = state.get('headrace')
        if version is not None and (type(version) is not int or version != STATE_VERSION):
            raise ResumeError(
                f'this version of headrace reads states of version {STATE_VERSION}, got {short(version)}. '
                'Resume with the version of headrace that wrote the checkpoint, or a later one.'
            )
        bounds = dict(_INTEGERS)
        if version is not None:
            bounds |= {'initial_physical_nodes': (1, _MAX_NODES), 'epoch_size': (1, MAX_EPOCH_SIZE)}
        elif state.get('initial_physical_nodes') is not None:
            bounds |= {'initial_physical_nodes': (1, _MAX_NODES)}
        wanted = [*bounds, 'config'] if version is not None else list(bounds)
        missing = [key for key in wanted if key not in state]
        problems = [f'{key} is missing' for key in missing]
        for key, (least, most) in bounds.items():
            value = state.get(key, least)
            if isinstance(value, bool) or not isinstance(value, int):
                problems.append(f'{key} must be an int, got {short(value)}')
            elif value < least:
                problems.append(f'{key} must be at least {least}, got {short(value)}')
            elif value > most:
                limit = '2^1024' if most == MAX_SEED else most
                problems.append(f'{key} must be at most {limit}, got {short(value)}')
        config = state.get('config') if version is not None else None
        if not problems and config is not None:
            problems += _broken_rules(config, state)
        if problems:
            kind = MissingStateKeyError if missing else ResumeError
            raise kind(
                f'a dataset state breaks its format: {"; ".join(problems)}. Got keys {short(sorted(map(str, state)))}. '
                f'The checkpoint is damaged, or another program wrote it.'
            )
        nodes = state.get('initial_physical_nodes')
        return cls(
            **{key: state[key] for key in _INTEGERS},
            initial_physical_nodes=nodes,
            version=version,
            epoch_size=state['epoch_size'] if version is not None else None,
            config=config,
        )

    def check(self, config: OrderConfig, mixture: Mixture, *, may_change_mixture: bool = False) -> bool:
        """Refuse a config and a mixture that cannot continue from this state.

        Args:
            config: the one from `resolved_from_state`, with its defaults filled in.
            mixture: resolved with that config's seed.
            may_change_mixture: whether streams, weights, schedule and epoch size may differ from the state's. With
                batching methods other than random, the global batch size may differ then, too.

        Returns:
            Whether the mixture differs from the state's.

        Raises:
            ResumeError: config and mixture do not give the sequence that this state is a position of; every field
                that differs is named with both values. MosaicML's states pin nothing but seed and canonical nodes.
        """
        if self.version is None and config.family.permutation is None:
            raise ResumeError(
                f'a checkpoint of MosaicML Streaming is a position of one of its orders, got shuffle_algo '
                f'{config.algorithm!r}. Name the shuffle_algo of that run, or leave it out for its default, py1e.'
            )
        differing = self._differing(config, mixture)
        of_mixture = {key: text for key, text in differing.items() if _is_of_mixture(key)}
        can_change = len(of_mixture) == len(differing) and self.version is not None and config.family.continues
        if differing and not (can_change and may_change_mixture):
            fix = "or pass on_mixture_change='continue' to continue with the current mixture" if can_change else ''
            if any(key in _TAKEN_OVER for key in differing):
                fix = f'or leave out {" and ".join(key for key in differing if key in _TAKEN_OVER)}, '
                fix += 'which the checkpoint then gives, or start a new run'
            raise ResumeError(
                f'a run continues only with the data, mixture and order that it began with; '
                f'different are {"; ".join(differing.values())}. Restore them, {fix or "or start a new run"}.'
            )
        then = self.epoch_size
        if then is not None and self.sample_in_epoch > then and not config.family.counts_repeats:
            raise ResumeError(f'sample_in_epoch must not exceed the epoch size {then}, got {self.sample_in_epoch}.')
        takeover = self.takeover
        if (self.epoch, self.sample_in_epoch) < (takeover.epoch, takeover.sample):
            raise ResumeError(
                f'the mixture of the checkpoint took over at sample {takeover.sample} of epoch {takeover.epoch}, got '
                f'sample {self.sample_in_epoch} of epoch {self.epoch}. Resume from a checkpoint of that time.'
            )
        return bool(differing)

    def _differing(self, config: OrderConfig, mixture: Mixture) -> dict[str, str]:
        """Differences of this state from a config and mixture, by key, as text with both values."""
        now: dict[str, Any] = {'shuffle_seed': config.seed, 'num_canonical_nodes': config.num_canonical_nodes}
        then: dict[str, Any] = {
            'shuffle_seed': self.shuffle_seed,
            'num_canonical_nodes': self.num_canonical_nodes or config.num_canonical_nodes,
        }
        if self.version is not None:
            now |= {'epoch_size': mixture.epoch_size, **_flat(json.loads(pinned_config(config, mixture)))}
            then |= {'epoch_size': self.epoch_size, **_flat(self.pinned)}
        absent = 'nothing'
        if 'sampling_granularity' in then and config.family.continues and config.sampling == 'balanced':
            now['sampling_granularity'] = then['sampling_granularity']  # the order does not depend on it

        def value(values: dict[str, Any], key: str) -> str:
            return short(values.get(key, absent), 1000)

        keys = [*then, *(key for key in now if key not in then)]
        differing = {
            key: f'{key}: {value(then, key)} in the checkpoint, {value(now, key)} now'
            for key in keys
            if then.get(key, absent) != now.get(key, absent)
        }
        for stream, draws in zip(mixture.streams, mixture.choose, strict=True):
            key = f'stream {stream.name!r} choose'
            if key in differing and key in then and self.epoch_size and stream.proportion is not None:
                shares = then[key] / self.epoch_size, draws / mixture.epoch_size
                differing[key] += ' (samples of an epoch; proportion {:.4g}, {:.4g} now)'.format(*shares)
        return differing


def decisions_in(given: Sequence[Any] | Mapping[str, Any]) -> tuple[Decision, ...]:
    """Read decisions from a list, or from a document for `find_state`; ConfigError, ResumeError: it is neither."""
    return ResumeState.from_dict(find_state(given)).decisions[0] if isinstance(given, Mapping) else decisions_of(given)


def find_state(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dataset's state in a document: the state itself, a trainer's state, or the file beside a checkpoint.

    Raises:
        ResumeError: it holds the states of several training loaders.
    """
    for key in ('state', 'position'):
        if not isinstance(cast('object', document), Mapping):
            raise ResumeError(f'a dataset state must be a mapping, got {short(document)}.')
        if key == 'position' and 'loaders' in document:
            loaders = document['loaders']
            names = ', '.join(map(str, cast('Mapping[Any, Any]', loaders))) if isinstance(loaders, Mapping) else '?'
            raise ResumeError(
                f'One state is needed, but these are the states of several training loaders: {names}. '
                f"Give one of the entries of 'loaders'."
            )
        document = document.get(key, document)
    return document


def pinned_config(
    config: OrderConfig,
    mixture: Mixture,
    skip: Ranges = (),
    dealt: tuple[int, ...] = (),
    decisions: Sequence[Decision] = (),
    since: int = 0,
) -> str:
    """The inputs of a sequence beside seed, canonical nodes and epoch, as canonical JSON (keys sorted, ASCII).

    And what it skips, which no position depends on; how it is dealt to ranks; and the decisions of the run.
    """
    config = config.resolve_defaults(mixture)
    pinned: dict[str, Any] = {
        **config.pinned,
        'streams': [
            {'name': stream.name, 'samples': stream.size, 'choose': choose, 'fingerprint': stream.fingerprint}
            for stream, choose in zip(mixture.streams, mixture.choose, strict=True)
        ],
    }
    if config.sampling == 'fixed' and config.family.continues:
        pinned['subset'] = 1  # the rule by which it is chosen
    if len(mixture.stages) > 1:
        pinned['stages'] = mixture.stages
    if mixture.schedule is not None:
        pinned['schedule'] = mixture.schedule.to_json()
    if mixture.takeover.positions:
        pinned['origin'] = mixture.takeover.to_json()
    if skip:
        pinned['skip'] = skip
    if dealt:
        pinned['dealt'] = dealt
    if decisions:
        pinned['decisions'] = [decision.to_json() for decision in decisions]
        if since:
            pinned['decided_since'] = since
    return json.dumps(pinned, sort_keys=True, separators=(',', ':'))


def _is_of_mixture(key: str) -> bool:
    is_changed = key in ORDER_OPTIONS and ORDER_OPTIONS[key].of_mixture
    return is_changed or key in ('epoch_size', 'stages', 'schedule', 'streams') or key.startswith('stream ')


def _broken_rules(config: object, state: Mapping[str, Any]) -> list[str]:
    """The rules that a state's ``config`` breaks, and its position; its integers are known to be within bounds."""
    pinned = read_pinned(config)
    if pinned is None:
        return [f'config must be a JSON object in a str, got {short(config)}']
    epoch, size = state['epoch'], state['epoch_size']
    documents = pinned.get('documents', size)  # of an epoch, where its samples are packed from them
    if not is_count(documents, 1, MAX_EPOCH_SIZE):
        return [f'documents must be a number of samples, got {short(documents)}']
    problems = list(pinned_errors(pinned, nodes=state['num_canonical_nodes'], epoch_size=documents))
    if not problems:
        takeover = pinned.get('origin', {'begin': 0, 'epoch': 0})
        if takeover['begin'] + (epoch - takeover['epoch']) * size > _MAX_RUN:
            problems.append(f'epoch must be one of a run of 2^61 samples at most, got epoch {epoch} of {size} samples')
    return problems


def _flat(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Each stream's fields as ``stream 'name' field``, and the streams' order."""
    flat = {key: value for key, value in pinned.items() if key not in _NOT_COMPARED}
    streams = pinned.get('streams', [])
    flat['streams'] = [stream.get('name') for stream in streams]
    for stream in streams:
        flat |= {f'stream {stream.get("name")!r} {key}': value for key, value in stream.items() if key != 'name'}
    return flat
