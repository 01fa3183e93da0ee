"""The matrix of resumes: the values of each dimension, those that exclude each other, and a scenario's legs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.support.trainers.composer_legs import Leg
from tests.support.trainers.composer_runs import TOKENS

EPOCHS = 3
GLOBAL_BATCH = 8
SAMPLES = 48
BATCHES = SAMPLES // GLOBAL_BATCH
"""Of an epoch."""

WORLDS = {
    '1x0': (1, 1, 0),
    '1x2': (1, 1, 2),
    '2x0': (2, 1, 0),
    '2x1, 2 nodes': (2, 2, 1),
    '4x0': (4, 1, 0),
}
"""Ranks, nodes and workers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Options of both legs, differences of the second leg, and the batches of an epoch."""

    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    second: Callable[[Leg, Leg], Mapping[str, Any]] = lambda first, second: {}
    batches: int = BATCHES


OPTIONS = {
    'none': Option(),
    'device_train_microbatch_size=1': Option(fields={'microbatch': 1}),
    'train_subset_num_batches=4': Option(fields={'subset': 4}, batches=4),
    'evaluation': Option(fields={'evaluate': '{evaluate}'}),
    'global batch of 12': Option(second=lambda *_: {'global_batch': 12}),
    'batch size of a rank kept': Option(
        second=lambda first, second: {'global_batch': GLOBAL_BATCH * second.ranks // first.ranks}
    ),
    'replication=2': Option(fields={'replication': 2}),
    'plain DataLoader': Option(fields={'plain': True}),
    'bucket=2, balance=1': Option(fields={'dataset': {'cost': 'id', 'bucket': 2, 'balance': 1}}),
    'shuffle_algo=py1e': Option(fields={'dataset': {'shuffle_algo': 'py1e', 'num_canonical_nodes': 2}}),
}

UNITS = {'ba': 1, 'sp': GLOBAL_BATCH, 'tok': GLOBAL_BATCH * TOKENS}
"""Of time, and what a global batch has of each."""

PLACES = ('mid-epoch', 'last batch', 'epoch end', 'end of a fit')
"""Where the checkpoint is: in epoch 1, after the last batch of epoch 0, behind epoch 0, or where a fit was to end."""

DURATIONS = ('ep', *UNITS)
RESUMES = ('exception, load_path', 'SIGKILL, autoresume')


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A training that ends too early, and one that continues from its last checkpoint."""

    place: str
    interval: str
    """Unit of `save_interval`."""
    duration: str
    """Unit of `max_duration`."""
    resume: str
    option: str
    before: str
    after: str

    def __str__(self) -> str:
        return (
            f'{self.place:<12} {self.interval:<3} {self.duration:<3} {self.resume:<20} {self.option:<30} '
            f'{self.before} -> {self.after}'
        )

    @property
    def is_possible(self) -> bool:
        return not any(rule(self) for rule in IMPOSSIBLE.values())


DIMENSIONS = [PLACES, ('ep', *UNITS), DURATIONS, RESUMES, list(OPTIONS), list(WORLDS), list(WORLDS)]

IMPOSSIBLE: dict[str, Callable[[Scenario], bool]] = {
    'an interval in epochs saves at their end': lambda one: (
        (one.interval == 'ep') == (one.place in ('mid-epoch', 'last batch'))
    ),
    'with `autoresume`, Composer removes a file once for each node that shares a folder for checkpoints': lambda one: (
        one.resume == 'SIGKILL, autoresume' and '2x1, 2 nodes' in (one.before, one.after)
    ),
    'one rank shares its samples with none': lambda one: (
        one.option == 'replication=2' and 1 in (WORLDS[one.before][0], WORLDS[one.after][0])
    ),
}


def scenarios() -> list[Scenario]:
    """All that are possible."""
    return [one for one in itertools.starmap(Scenario, itertools.product(*DIMENSIONS)) if one.is_possible]


def without_units() -> Iterator[Scenario]:
    """All that differ in more than the units of time, which take turns."""
    alike: dict[tuple[str, ...], list[Scenario]] = {}
    for one in scenarios():
        alike.setdefault((one.place, one.resume, one.option, one.before, one.after), []).append(one)
    for number, group in enumerate(alike.values()):
        yield group[number % len(group)]


def batches_behind(scenario: Scenario) -> int:
    """Global batches in the checkpoint."""
    epoch = OPTIONS[scenario.option].batches
    is_whole = scenario.place in ('last batch', 'epoch end') or (
        scenario.place == 'end of a fit' and scenario.duration == 'ep'
    )
    return epoch if is_whole else epoch + 2


def chain_of(scenario: Scenario, name: str, out: str, data: str, evaluate: str) -> list[Leg]:
    """The two legs of a scenario."""
    option = OPTIONS[scenario.option]
    fields = {key: evaluate if value == '{evaluate}' else value for key, value in option.fields.items()}
    behind, is_killed = batches_behind(scenario), scenario.resume == 'SIGKILL, autoresume'
    ends_itself = scenario.place == 'end of a fit'
    first = Leg(
        f'{name}-first',
        data,
        out,
        duration=_time(behind if ends_itself else EPOCHS * option.batches, scenario.duration, option.batches),
        folder=f'{name}-saved',
        interval='1ep' if scenario.interval == 'ep' else _within(behind, scenario.interval),
        autoresume=is_killed,
        **{} if ends_itself else {'kill_after' if is_killed else 'crash_after': behind + 2 - (behind > option.batches)},
        **fields,
    )
    first.ranks, first.nodes, first.workers = WORLDS[scenario.before]
    second = Leg(
        f'{name}-second',
        data,
        out,
        duration=_time(EPOCHS * option.batches, scenario.duration, option.batches),
        **{'folder': first.folder, 'autoresume': True} if is_killed else {'load': str(first.latest)},
        **fields,
    )
    second.ranks, second.nodes, second.workers = WORLDS[scenario.after]
    return [first, dataclasses.replace(second, **option.second(first, second))]


def _time(batches: int, unit: str, batches_of_epoch: int) -> str:
    """So many batches of the first leg, in Composer's words."""
    return f'{batches // batches_of_epoch}ep' if unit == 'ep' else f'{batches * UNITS[unit]}{unit}'


def _within(batches: int, unit: str) -> str:
    """The same, but samples and tokens are reached within the last batch."""
    return f'{batches * UNITS[unit] - UNITS[unit] // 3}{unit}'
