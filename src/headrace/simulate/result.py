"""A simulated run: the machines, network and model that it assumes, and its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from headrace.errors import ConfigError
from headrace.errors.display import count_text, human_size, text_table
from headrace.mixing import LoaderConfig
from headrace.order import Topology
from headrace.order.config import SharedShards
from headrace.order.length_waste import LengthWaste

_STALL_SECONDS, _STALL_SHARE = 0.001, 0.05


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The assumptions of a simulation. Times are in seconds, rates in bytes per second.

    Raises:
        ConfigError: a value is out of range.
    """

    ranks: int = 1
    """Ranks of all nodes together."""
    nodes: int = 1
    replication: int = 1
    """Neighbouring ranks that get the same samples; 1: as many as the configuration says."""
    step_seconds: float = 0.1
    """Time of a training step, without waiting for data."""
    bandwidth: float = 1e9 / 8
    """Of each node, for all its connections together."""
    connection_bandwidth: float = float('inf')
    """Of one connection."""
    latency: float = 0.03
    """From a request to the first byte of its answer."""
    request_seconds: float = 0.002
    """Time of a request beside the latency: a library signs and sends it, and reads the answer's head."""
    publish_seconds: float = 0.001
    """Time from the last byte of a shard until it can be read: it is checked and gets its name."""
    read_seconds: float = 0.0002
    """Time in which one process makes a batch from cached shards, with decoding and `transform`."""
    receive_seconds: float = 0.0005
    """Time in which a trainer takes a batch that a worker has made."""
    unpack_rate: float = 1e9
    """Bytes of a compressed shard that one process unpacks per second; of the unpacked shard."""
    start_seconds: float = 0.1
    """Time in which the workers of a rank start, in each epoch that starts them."""
    batches: int = 500
    """The most global batches of an epoch that are simulated; the rest is estimated from their second half."""
    epochs: int = 1
    """Epochs that are simulated, one after the other, with one cache."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name == 'latency' or field.name.endswith('_seconds')
            may_be_infinite = field.name in {'bandwidth', 'connection_bandwidth', 'unpack_rate'}
            if not (value > 0 or (may_be_zero and value == 0)) or (value == math.inf and not may_be_infinite):
                rule = ('0 or more' if may_be_zero else 'more than 0') + ('' if may_be_infinite else ', and finite')
                raise ConfigError(f'`{field.name}` of a simulation must be {rule}, got {value}.')
        if self.ranks % self.nodes:
            raise ConfigError(f'the nodes must divide the ranks, got {self.ranks} ranks on {self.nodes} nodes.')

    def topology(self, config: LoaderConfig) -> Topology:
        """The first rank of the run of a loader.

        Raises:
            TopologyError: the replication divides no node.
        """
        copies = config.replication or 1 if self.replication == 1 else self.replication
        return Topology(rank=0, world_size=self.ranks, num_nodes=self.nodes, replication=copies)

    @property
    def shortest_stall(self) -> float:
        """Seconds of waiting above which a step counts as a stall, as in `LoaderStats.stalls`."""
        return max(_STALL_SECONDS, _STALL_SHARE * self.step_seconds)

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes


class SimulatedStep(NamedTuple):
    epoch: int
    number: int
    end: float  # seconds since the begin of the run
    wait: float  # seconds that the slowest rank waited for its batch
    fetched: float  # bytes that a node has fetched so far
    cached: int  # bytes in the cache of a node, of the fullest one


class SharedCaches(NamedTuple):
    """Caches that nodes share, by `peers`. Bytes are of all nodes in an epoch like the last one."""

    used_bytes: int
    """In the store, of the shards in use."""
    store_bytes: int
    """That leave the store."""
    peer_share: float
    """Of the bytes that nodes fetched in the simulated steps, those from peers; from 0 to 1."""
    gone_share: float
    """Of the shards in use, those that their owners cannot keep; from 0 to 1."""
    limit_for_all: int
    """The `cache_limit` with which each owner keeps all its shards."""


@dataclass(frozen=True)
class SimulatedRun:
    """A simulated run. Bytes are of one node, on average over the nodes."""

    conditions: Conditions
    steps: tuple[SimulatedStep, ...]
    epoch_batches: int
    """Global batches of a whole epoch."""
    global_batch_size: int
    dataset_bytes: int
    """In the store."""
    dataset_shards: int
    planned_bytes: int
    """Of the shards that a node fetches in an epoch that begins with an empty cache."""
    has_limit: bool
    """Whether the cache has a limit, so that shards may be fetched again."""
    fetched_bytes: int
    """In the simulated steps."""
    fetched_shards: int
    cache_bytes: int
    """The most that the cache held."""
    shared_shards: SharedShards | None = None
    """Whether several nodes download the same shards, and what avoids it."""
    lengths: LengthWaste | None = None
    """Padding and unequal work, where the configuration names a `cost`."""
    evicts: bool = False
    """Whether shards were evicted in the simulated steps."""
    hit_share: float = 0.0
    """Of the shards that batches needed, those that were in the cache; from 0 to 1."""
    shared: SharedCaches | None = None
    """Where the configuration has `peers`."""
    alone: SimulatedRun | None = None
    """The same run without `peers`."""

    @property
    def first_batch_seconds(self) -> float:
        """From the begin to the first batch."""
        return self.steps[0].wait if self.steps else 0.0

    @cached_property
    def stalls(self) -> int:
        """Steps that waited noticeably, the first of each epoch excepted."""
        return sum(step.wait > self.conditions.shortest_stall for step in self.steps if step.number)

    @property
    def waiting_seconds(self) -> float:
        """Of all simulated steps."""
        return sum(step.wait for step in self.steps)

    @cached_property
    def seconds_per_step(self) -> float:
        """In the second half of the simulated steps of the last epoch."""
        last = [step for step in self.steps if step.epoch == self.steps[-1].epoch]
        half = last[len(last) // 2 :]
        return fmean(step.wait + self.conditions.step_seconds for step in half)

    @property
    def samples_per_second(self) -> float:
        """Of all ranks, at `seconds_per_step`."""
        return self.global_batch_size / self.seconds_per_step if self.seconds_per_step else math.inf

    @property
    def is_whole(self) -> bool:
        """Whether whole epochs were simulated."""
        return bool(self.steps) and self.steps[-1].number + 1 == self.epoch_batches

    @property
    def epoch_seconds(self) -> float:
        """Of a whole epoch, like the last one; beyond the simulated steps an estimate."""
        last = [step for step in self.steps if step.epoch == self.steps[-1].epoch]
        done = sum(step.wait + self.conditions.step_seconds for step in last)
        return done + (self.epoch_batches - len(last)) * self.seconds_per_step

    @property
    def epoch_waiting_share(self) -> float:
        """Share of `epoch_seconds` that is spent waiting for data, from 0 to 1."""
        computing = self.epoch_batches * self.conditions.step_seconds
        return max(0.0, 1 - computing / self.epoch_seconds) if self.epoch_seconds else 0.0

    @property
    def epoch_fetched_bytes(self) -> int:
        """Bytes that a node fetches in an epoch like the last one; beyond the simulated steps an estimate."""
        last = [step for step in self.steps if step.epoch == self.steps[-1].epoch]
        before = self.steps[-len(last) - 1].fetched if len(last) < len(self.steps) else 0.0
        if self.is_whole:
            return int(last[-1].fetched - before)
        if not self.evicts:
            return self.planned_bytes
        half = last[len(last) // 2 :]
        per_step = (half[-1].fetched - half[0].fetched) / max(1, len(half) - 1)
        return max(self.planned_bytes, int(last[-1].fetched - before + per_step * (self.epoch_batches - len(last))))

    @property
    def epoch_store_bytes(self) -> int:
        """Bytes that all nodes fetch from the store in an epoch like the last one, about."""
        return self.epoch_fetched_bytes * self.conditions.nodes if self.shared is None else self.shared.store_bytes

    def times(self, run: SimulatedRun) -> float:
        """How often a shard in use leaves the store in an epoch of another run, or of this one, which has `peers`."""
        return run.epoch_store_bytes / max(1, self.shared.used_bytes if self.shared else 0)

    def to_json(self) -> dict[str, Any]:
        """All figures as plain values, `steps` as a list for each; infinity becomes None."""
        names = ('conditions', 'steps', 'shared_shards', 'lengths', 'shared', 'alone')
        figures = {name: value for name, value in vars(self).items() if name not in names and not name.startswith('_')}
        derived = (
            'first_batch_seconds', 'stalls', 'waiting_seconds', 'seconds_per_step', 'samples_per_second',
            'epoch_seconds', 'epoch_waiting_share', 'epoch_fetched_bytes', 'epoch_store_bytes', 'is_whole',
        )  # fmt: skip
        return {
            'conditions': _without_infinity(vars(self.conditions)),
            **figures,
            **_without_infinity({name: getattr(self, name) for name in derived}),
            'lengths': self.lengths and self.lengths._asdict(),
            'shared': self.shared and self.shared._asdict(),
            'alone': self.alone and {**self.alone.to_json(), 'steps': None},
            'notes': self.notes(),
            'steps': [list(step) for step in self.steps],
        }

    def rows(self) -> list[tuple[str, str]]:
        """The figures that people look at: a name and a text each."""
        steps, share = len(self.steps), self.waiting_seconds / (self.steps[-1].end or 1)
        rate = self.samples_per_second
        of = 'simulated' if self.is_whole else f'estimated from {count_text(steps, "step")}'
        fetched, whole = human_size(self.epoch_fetched_bytes), human_size(self.dataset_bytes)
        rows = [
            ('first batch', f'{self.first_batch_seconds:.2f} s'),
            ('throughput', f'{rate:,.0f} samples/s, {rate / self.global_batch_size:,.2f} steps/s'),
            ('waiting', f'{100 * share:.1f} % of the time, {self.stalls:,} of {count_text(steps, "step")}'),
            ('an epoch', f'{_duration(self.epoch_seconds)}, {count_text(self.epoch_batches, "step")} ({of})'),
            (
                'fetched',
                f'{fetched} by each node in an epoch, of {whole} in {count_text(self.dataset_shards, "shard")}',
            ),
            ('cache', f'{human_size(self.cache_bytes)} at most in {count_text(steps, "step")}'),
            ('cache hits', f'{100 * self.hit_share:.1f} % of the shards that batches needed'),
        ]
        if (shared := self.shared) is not None:
            alone = '' if self.alone is None else f', without `peers` {self.times(self.alone):.2f}'
            peers = self.epoch_fetched_bytes * self.conditions.nodes * shared.peer_share
            times = f'each shard {self.times(self):.2f} times in an epoch{alone}'
            rows += [
                ('from the store', f'{human_size(shared.store_bytes)} by all nodes: {times}'),
                ('from peers', f'{human_size(peers)} by all nodes, {100 * shared.peer_share:.0f} % of their bytes'),
            ]
        if self.lengths is not None:
            rows += [
                ('padding', f'{100 * self.lengths.padding:.1f} % of the places, if ranks pad to their longest row'),
                ('most work', f'{self.lengths.slowest:.2f} times that of the mean rank'),
            ]
        return rows

    def notes(self) -> list[str]:
        """Sentences on gaps of the simulation, and on waste: shared shards, padding, unequal work."""
        shared = self.shared_shards
        notes = [] if shared is None else [f'{shared.text}: {shared.fix}.']
        if self.has_limit and not (self.evicts or self.is_whole):
            notes.append(
                'no shard was evicted in the simulated steps, so the bytes of an epoch are those of a cache without '
                'limit: simulate more steps with --batches.'
            )
        if self.shared is not None:
            notes.append(
                'the time in which nodes send shards, and fetch them for others, is not simulated: peers are as '
                'quick as the store.'
            )
            if self.shared.gone_share:
                notes.append(
                    f'owners cannot keep {100 * self.shared.gone_share:.0f} % of the shards, which leave the store '
                    f'again: set `cache_limit` to {human_size(self.shared.limit_for_all)} or more.'
                )
        return notes + ([] if self.lengths is None else self.lengths.notes())

    def __str__(self) -> str:
        return '\n'.join([*text_table(self.rows()), *(f'  note: {note}' for note in self.notes())])


def _without_infinity(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in values.items()}


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f'{hours} h {minutes:02} min' if hours else f'{minutes} min {rest:02.0f} s' if minutes else f'{rest:.1f} s'
