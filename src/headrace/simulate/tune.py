"""A search for the settings of a loader under which a run waits little, over simulated runs.

A coordinate search: one setting after the other gets larger or smaller values, and keeps the best one, until the run
waits as little as it should. The settings that change the order come last.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.config.build import build_dataset
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.errors import ConfigError, HeadraceError
from headrace.errors.display import human_size, text_table
from headrace.mixing import LoaderConfig
from headrace.simulate.result import Conditions, SimulatedRun
from headrace.simulate.run import simulate
from headrace.storage.cache.peer_options import PeerOptions

SETTINGS: Final = ('predownload', 'num_workers', 'cache_limit', 'shuffle_block_size', 'num_canonical_nodes')
"""Keys of `LoaderConfig`, and `num_workers` of its `loader`, in the order in which they are tuned."""

OF_THE_ORDER: Final = frozenset({'num_canonical_nodes', 'shuffle_block_size'})
"""Those that change the order, so that a checkpoint taken with another value refuses to continue."""


def replace_settings(config: LoaderConfig, values: Mapping[str, int | None]) -> LoaderConfig:
    """The configuration with other settings; those without a value here stay."""
    of_dataset = {name: value for name, value in values.items() if name != 'num_workers'}
    workers = values.get('num_workers')
    loader = config.loader if workers is None else dataclasses.replace(config.loader, num_workers=workers)
    return dataclasses.replace(config, loader=loader, **of_dataset)  # pyright: ignore[reportArgumentType]


def settings_in_use(config: LoaderConfig, dataset: StreamingDataset) -> dict[str, int | None]:
    """The settings of a loader, with their defaults filled in; None without a `cache_limit`, or without blocks."""
    order = dataset.order_config
    return {
        'num_workers': config.loader.num_workers,
        'predownload': config.predownload if config.predownload is not None else _default_predownload(dataset),
        'cache_limit': dataset.cache_limit,
        'num_canonical_nodes': order.num_canonical_nodes,
        'shuffle_block_size': order.block_size if order.shuffle and order.family.has_blocks else None,
    }


def _default_predownload(dataset: StreamingDataset) -> int:
    """About how many samples a default prefetch is ahead of its reader; it ends at a number of bytes, too."""
    batch_size = dataset.batch_size or 1
    limits = prefetch_limits(None, batch_size)
    stored = sum(int(np.sum(stream.shards.raw_bytes())) for stream in dataset.streams)
    samples = int(limits.bytes * dataset.num_samples / max(1, stored))
    return max(batch_size, min(limits.batches * batch_size, samples))


def yaml_lines(values: Mapping[str, int]) -> list[str]:
    """The lines of a configuration that give these settings to the training loader."""
    lines = ['train:', *(f'  {name}: {value}' for name, value in values.items() if name != 'num_workers')]
    if 'num_workers' in values:
        lines += ['  loader:', f'    num_workers: {values["num_workers"]}']
    return lines


_ROUNDS: Final = 2
_USELESS: Final = 2  # values without a gain, after which no farther ones are tried
_GAIN: Final = 0.95  # of the waiting above the target; a change that leaves more is not worth making
_SMALLEST_BLOCK: Final = 1024
_MOST_CANONICAL_NODES: Final = 1024
_SAME: Final = 1.25  # times as many bytes from the store; a saving of less is none


@dataclass(frozen=True)
class Trial:
    setting: str  # the setting that differs from the choice before; empty in the run before all changes
    value: int | None
    waiting: float  # share of an epoch's time that is spent waiting for data
    first_batch_seconds: float
    epoch_seconds: float
    epoch_fetched_bytes: int  # of each node
    cache_bytes: int  # the most that a node's cache held
    is_kept: bool = False

    @property
    def seconds_waiting(self) -> float:
        return self.waiting * self.epoch_seconds

    @property
    def changes_order(self) -> bool:
        """Whether a run in progress cannot take this change."""
        return self.setting in OF_THE_ORDER


@dataclass(frozen=True)
class Tuning:
    """The proposal of a search."""

    target: float
    """Share of waiting that was asked for."""
    trials: tuple[Trial, ...]
    """In the order of the search, the unchanged run first."""
    before: dict[str, int | None]
    """The settings without changes, with their defaults filled in."""
    changes: dict[str, int]
    """The proposed settings that differ."""
    after: Trial
    """The run with the changes."""
    limit: str
    """The limit of the run, if it waits more than it should; else empty."""
    missing: tuple[str, ...] = ()
    """The settings of which not all values were tried, because the time of the search was up."""
    peers: str = ''
    """Whether `peers` are worth it, or other canonical nodes; empty for one node, and for local data."""

    @property
    def is_complete(self) -> bool:
        """Whether the search ended before its time was up."""
        return not self.missing

    @property
    def is_reached(self) -> bool:
        """Whether the run with the changes waits as little as it should."""
        return self.after.waiting <= self.target

    @property
    def changes_order(self) -> bool:
        """Whether the proposal is for a new run only."""
        return not OF_THE_ORDER.isdisjoint(self.changes)

    def notes(self) -> list[str]:
        """Sentences on the result."""
        notes: list[str] = []
        if not self.changes:
            notes.append('No change is proposed.')
        if not self.is_complete:
            notes.append(
                f'The time of the search was up before all values were tried, of {", ".join(self.missing)}. Give it '
                f'more with --seconds.'
            )
        if not self.is_reached and self.is_complete:
            notes.append(f'The target of {_percent(self.target)} is out of reach: {self.limit}')
        if self.changes_order:
            names = ' and '.join(name for name in SETTINGS if name in self.changes and name in OF_THE_ORDER)
            notes.append(
                f'For a new run only: the order of the samples depends on {names}, so a checkpoint from before '
                'refuses to continue. For a run in progress, search with --keep-order.'
            )
        return [*notes, self.peers] if self.peers else notes

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            'target': self.target,
            'is_reached': self.is_reached,
            'is_complete': self.is_complete,
            'missing': list(self.missing),
            'changes': self.changes,
            'changes_order': self.changes_order,
            'before': self.before,
            'after': dataclasses.asdict(self.after),
            'trials': [dataclasses.asdict(trial) for trial in self.trials],
            'peers': self.peers,
            'notes': self.notes(),
        }

    def __str__(self) -> str:
        header = ('', 'setting', 'value', 'waiting', 'first batch', 'an epoch', 'fetched by a node', '')
        rows = [header, *(self._row(trial) for trial in self.trials)]
        lines = text_table(rows, indent=0)
        if self.changes:
            lines += ['', *yaml_lines(self.changes)]
        return '\n'.join([*lines, '', *self.notes()] if self.notes() else lines)

    def _row(self, trial: Trial) -> tuple[str, ...]:
        return (
            '*' if trial.is_kept else '',
            trial.setting or 'as configured',
            '' if trial.value is None else _shown(trial.setting, trial.value),
            _percent(trial.waiting),
            f'{trial.first_batch_seconds:.2f} s',
            f'{trial.epoch_seconds:,.0f} s',
            human_size(trial.epoch_fetched_bytes),
            'another order' if trial.changes_order else '',
        )


def tune(
    config: LoaderConfig,
    conditions: Conditions,
    *,
    target: float = 0.01,
    most_workers: int = 8,
    disk: int | None = None,
    keep_order: bool = False,
    seconds: float = math.inf,
    progress: Callable[[Trial], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Search for settings under which a run waits little for data.

    Args:
        config: the training loader. Its settings are where the search begins, and stay where no change helps.
        conditions: machines, network and model. The run of a model without step time always waits.
        target: share of the time of the first epoch that may be spent waiting, from 0 to 1.
        most_workers: workers of a rank at most.
        disk: bytes that the cache of a node may take at most; if there is a limit, by default all shards.
        keep_order: do not try settings that change the order, for a run in progress.
        seconds: real time of the search; then it proposes the best values of its tries.
        progress: called after each simulated run.
        clock: seconds.

    Raises:
        ConfigError: a value is out of range; the time is up before the run without changes is simulated; or as of
            `simulate`.
        HeadraceError, OSError: as of `simulate`, for the configuration without changes.
    """
    if not 0 <= target < 1:
        raise ConfigError(f'the target of waiting is a share from 0 to below 1, such as 1% or 0.01, got {target}.')
    if not conditions.step_seconds:
        raise ConfigError('tuning needs the time of a step, since a run without it only waits. Give `step_seconds`.')
    if not seconds > 0:
        raise ConfigError(f'the time of a search must be more than 0 s, got {seconds}.')
    end = clock() + seconds

    def check() -> None:
        if clock() >= end:
            raise _TimeIsUpError

    try:
        search = _Search(config, conditions, target, disk, check, progress)
    except _TimeIsUpError:
        raise ConfigError(
            f'the run without changes was not simulated in the {seconds:g} s of the search. Give more time, or '
            'simulate fewer batches.'
        ) from None
    settings = [name for name in SETTINGS if not (keep_order and name in OF_THE_ORDER)]
    missing = settings
    try:
        for _ in range(_ROUNDS):
            before = dict(search.chosen)
            for number, setting in enumerate(settings):
                missing = settings[number:]
                if not search.is_reached:
                    search.try_all(setting, most_workers)
            if search.is_reached or search.chosen == before:
                break
        missing = []
        search.weigh_peers()
    except _TimeIsUpError:
        return search.result(missing=[] if search.is_reached else missing, has_peers=False)
    return search.result()


class _TimeIsUpError(Exception):
    """Ends a search."""


class _Search:
    def __init__(
        self,
        config: LoaderConfig,
        conditions: Conditions,
        target: float,
        disk: int | None,
        check: Callable[[], None],
        progress: Callable[[Trial], None],
    ) -> None:
        self._config, self._conditions, self._target = config, conditions, target
        self._check, self._progress = check, progress
        self._peers = ''
        self._run = self._simulate(config)
        dataset = build_dataset(config, topology=conditions.topology(config))
        self._before = settings_in_use(config, dataset)
        all_bytes = sum(int(np.sum(stream.shards.raw_bytes())) for stream in dataset.streams)
        self._samples = dataset.num_samples
        self._most_cached = all_bytes if disk is None else min(disk, all_bytes)
        self.chosen: dict[str, int] = {}
        limit = self._before['cache_limit']
        if disk is not None and disk < all_bytes and (limit is None or limit > disk):
            self.chosen['cache_limit'] = disk  # it must fit, whatever the run then waits
            self._run = self._simulate(replace_settings(config, self.chosen))
        self._trials = [_trial('', None, self._run)]
        self._best = self._trials[0]
        progress(self._best)
        self._tried = {frozenset(self.chosen.items())}

    @property
    def is_reached(self) -> bool:
        return self._best.waiting <= self._target

    def try_all(self, setting: str, most_workers: int) -> None:
        """Try other values of a setting, the nearest first, until one is enough; keep the best."""
        best: tuple[Trial, SimulatedRun, int] | None = None
        useless = 0
        try:
            for trial, run, value in self._new_trials(setting, most_workers):
                least = self._best if best is None else best[0]
                useless = 0 if trial.seconds_waiting < _GAIN * least.seconds_waiting else useless + 1
                if best is None or trial.seconds_waiting < best[0].seconds_waiting:
                    best = trial, run, value
                if trial.waiting <= self._target or useless == _USELESS:
                    break
        finally:  # also when the time is up
            if best is not None and self._is_worth_it(best[0]):
                trial, self._run, self.chosen[setting] = best
                self._best = dataclasses.replace(trial, is_kept=True)
                self._trials[self._trials.index(trial)] = self._best

    def _is_worth_it(self, trial: Trial) -> bool:
        if trial.waiting <= self._target:
            return True
        return self._excess(trial) < _GAIN * self._excess(self._best)

    def _excess(self, trial: Trial) -> float:
        return trial.seconds_waiting - self._target * trial.epoch_seconds

    def _new_trials(self, setting: str, most_workers: int) -> Iterator[tuple[Trial, SimulatedRun, int]]:
        for value in self._values(setting, most_workers):
            values = {**self.chosen, setting: value}
            if frozenset(values.items()) in self._tried:
                continue
            self._tried.add(frozenset(values.items()))
            try:
                run = self._simulate(replace_settings(self._config, values))
            except HeadraceError:  # a value that the data or the order do not allow, such as a cache of half a shard
                continue
            trial = _trial(setting, value, run)
            self._trials.append(trial)
            self._progress(trial)
            yield trial, run, value

    def _values(self, setting: str, most_workers: int) -> Iterator[int]:
        value = self.chosen.get(setting, self._before[setting])
        conditions = self._conditions
        if setting == 'num_workers':
            if conditions.read_seconds < self._target * conditions.step_seconds:
                return  # reading itself takes no time to speak of
            steps = [1 << power for power in range(most_workers.bit_length())]
            yield from (each for each in steps if each > (value or 0))
        elif value is None:
            return
        elif setting == 'predownload':
            yield from (value * factor for factor in (2, 4, 8))
            if self.chosen.get('cache_limit', self._before['cache_limit']) is not None:
                yield from (value // factor for factor in (2, 4) if value // factor)
        elif setting == 'cache_limit':
            while value < self._most_cached:
                value = min(2 * value, self._most_cached)
                yield value
        elif setting == 'num_canonical_nodes':
            nodes = conditions.nodes
            nearest = max(1, round(value / nodes)) * nodes
            ladder = [nearest * 4, nearest * 2, nearest, nearest // 2, nearest // 4]
            yield from (
                each for each in ladder if each != value and not each % nodes and 0 < each <= _MOST_CANONICAL_NODES
            )
        else:
            canonical = self.chosen.get('num_canonical_nodes', self._before['num_canonical_nodes']) or 1
            value = min(value, self._samples // canonical)  # a larger block is the same as all of them
            yield from (value // factor for factor in (2, 4, 8, 16) if value // factor >= _SMALLEST_BLOCK)

    def _simulate(self, config: LoaderConfig) -> SimulatedRun:
        return simulate(config, self._conditions, check=self._check, without_peers=False)

    @property
    def _compares_peers(self) -> bool:
        return self._conditions.nodes > 1 and self._run.planned_bytes > 0

    def weigh_peers(self) -> None:
        """Compare what leaves the store with and without `peers`, and with canonical nodes that the nodes divide."""
        if not self._compares_peers:
            return
        config = replace_settings(self._config, self.chosen)

        def run(**values: Any) -> SimulatedRun:
            return self._simulate(dataclasses.replace(config, **values))

        alone = self._run if config.peers is None else run(peers=None)
        try:
            peers = self._run if config.peers is not None else run(peers=PeerOptions())
        except HeadraceError as error:
            self._peers = f'`peers` do not go with this configuration: {error}'
            return
        now, then, shared = peers.times(alone), peers.times(peers), alone.shared_shards
        reason = f'In an epoch each shard leaves the store {now:.2f} times, and {then:.2f} times with `peers`'
        if now <= _SAME * then:
            self._peers = f'{reason}: they save little.'
            return
        advice = 'Set `peers` if the nodes are connected faster than the store.'
        if shared is not None:
            name, value = 'num_canonical_nodes', shared.canonical_nodes
            other = peers.times(run(peers=None, **{name: value}))
            reason = f'{reason}; with `{name}: {value}` and without peers {other:.2f} times'
            if other <= _SAME * then:
                advice = (
                    f'Set `{name}` in a new run, which sends nothing between nodes, and `peers` in a run in progress.'
                )
        self._peers = f'{reason}. {advice}'

    def result(self, *, missing: Sequence[str] = (), has_peers: bool = True) -> Tuning:
        missing = [name for name in missing if self._before[name] is not None]  # others have no values to try
        if not has_peers and self._compares_peers:
            missing.append('peers')
        changes = {name: self.chosen[name] for name in SETTINGS if name in self.chosen}
        changes = {name: value for name, value in changes.items() if value != self._before[name]}
        limit = '' if self.is_reached else self._limit()
        return Tuning(
            self._target, tuple(self._trials), self._before, changes, self._best, limit, tuple(missing), self._peers
        )

    def _limit(self) -> str:
        """The limit of a run that waits, with the change outside of the loader's settings."""
        conditions, run = self._conditions, self._run
        computing = run.epoch_batches * conditions.step_seconds
        needed = run.planned_bytes / computing  # each shard once
        if needed > conditions.bandwidth * (1 - self._target):
            return (
                f'the model wants {human_size(needed)}/s on each node, and the network gives '
                f'{human_size(conditions.bandwidth)}/s. Compress the shards, or store fewer bytes of a sample.'
            )
        workers = self.chosen.get('num_workers', self._config.loader.num_workers)
        if conditions.read_seconds / max(1, workers) > conditions.step_seconds * (self._target if not workers else 1):
            return (
                f'a batch takes {conditions.read_seconds:.3g} s of a processor, and a step '
                f'{conditions.step_seconds:.3g} s. Allow more workers (--most-workers), or do less for each sample.'
            )
        if run.first_batch_seconds > 0.5 * (run.epoch_seconds - computing):
            return (
                f'the first batch takes {run.first_batch_seconds:.2f} s of an epoch of {run.epoch_seconds:,.1f} s. '
                'Make smaller shards, or warm the cache before the run (headrace warm).'
            )
        has_limit = self.chosen.get('cache_limit', self._before['cache_limit']) is not None
        fix = 'raise `cache_limit` and --disk' if has_limit else 'warm the cache before the run (headrace warm)'
        return f'shards come later than the order needs them. Make smaller shards, or {fix}.'


def _trial(setting: str, value: int | None, run: SimulatedRun) -> Trial:
    return Trial(
        setting,
        value,
        run.epoch_waiting_share,
        run.first_batch_seconds,
        run.epoch_seconds,
        run.epoch_fetched_bytes,
        run.cache_bytes,
    )


def _percent(share: float) -> str:
    return f'{100 * share:.1f} %'


def _shown(setting: str, value: int) -> str:
    return human_size(value) if setting == 'cache_limit' else f'{value:,}'
