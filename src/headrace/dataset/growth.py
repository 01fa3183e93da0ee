"""What a dataset reads: its opened streams and its run, opened again where data have grown."""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from headrace.dataset.attributes import DatasetAttributes
from headrace.dataset.batch_keys import LossWeight, loss_weights
from headrace.dataset.cache_files import EpochPermutations
from headrace.dataset.ranks import decided_by_first, has_group
from headrace.dataset.reading.batch_reader import Weigh
from headrace.dataset.sequence import Continuation
from headrace.dataset.streams.open_streams import OpenedStream, look_at_indexes, open_streams
from headrace.dataset.streams.stream import Stream, StreamDefaults
from headrace.dataset.topology import detect_topology
from headrace.errors import ConfigError, EmptyDatasetError, StreamError
from headrace.errors.exclusions import Settings, refuse_exclusions
from headrace.errors.redaction import logger_of
from headrace.format.entries import INDEX_NAME
from headrace.format.index import Generation, IndexFile
from headrace.order import Remainder, ResumeState, Run
from headrace.selection.costs import DatasetCosts
from headrace.storage.cache.peers import Peers

OnGrowth: TypeAlias = Literal['ignore', 'next_pass', 'delta', 'wait']
"""The samples of a pass where shards were appended since the last one. ``ignore``: those that the run began with.
``next_pass``: all that are there when it begins. ``delta``: new ones, if there are any. ``wait``: new ones."""

_log = logger_of(__name__)

_PAUSES: Final = (0, 1, 2, 4, 8, 15)
"""Seconds before each further look at an index that lags behind that of other ranks."""
_POLL: Final = 5.0  # seconds between two looks at an index; ranks wait for one another no longer than that


class Opened(NamedTuple):
    """The streams of a dataset as they were opened together, and what follows from them."""

    streams: list[OpenedStream]
    run: Run
    """A new run over them."""
    weigh: Weigh | None
    """Gives the weights of a batch's rows, under ``loss_weight``."""


@dataclass(kw_only=True)
class Opener:
    """The arguments with which a dataset's streams are opened."""

    given: Sequence[Stream]
    defaults: StreamDefaults
    cache_limit: int | None
    peers: Peers | None
    allow_unsafe_types: bool
    has_costs: bool
    loss_weight: LossWeight | None
    is_packed: bool
    on_growth: OnGrowth
    growth_wait: float
    """Seconds for which `wait` waits."""
    settings: Settings
    """All arguments of the dataset."""
    run: Mapping[str, Any]
    """Arguments of `Run`, beside those that follow from the streams."""
    passed_over: str = field(init=False, default='')
    """Digest of the index whose new samples `where` leaves out."""

    def __post_init__(self) -> None:
        self._unopened = [copy.copy(stream) for stream in self.given]  # which do not show what was opened

    @property
    def follows(self) -> bool:
        """Whether passes take samples that were appended."""
        return self.on_growth != 'ignore'

    def open(self, generations: Mapping[str, Generation] | None = None, again: Sequence[OpenedStream] = ()) -> Opened:
        """Open the streams.

        Args:
            generations: see `open_streams`. If None, all shards that are there now.
            again: the streams as they were opened before.

        Raises:
            StreamError: the present index of a stream does not begin with its generation, and growth is followed.
        """
        streams = self._open(generations or {}, again, asks=generations is None)
        pauses = iter(_PAUSES)
        while generations and self.follows and (stream := _lacking(streams, generations)):
            # Another process has seen them in the store.
            if (pause := next(pauses, None)) is None:
                raise StreamError(
                    f'Rank {detect_topology().rank} sees generation {stream.fingerprint} of stream {stream.title}, but '
                    f'the other ranks or the checkpoint have generation {generations[stream.name or ""]}, and it '
                    f'asked again for {sum(_PAUSES)} s. Data under `on_growth` {self.on_growth!r} only grow: resume '
                    f'the run when this rank sees the same {INDEX_NAME} as the others, restore the index if it was '
                    f'replaced, or start a new run.'
                )
            time.sleep(pause)
            streams = self._open(generations, again, asks=True)
        all_costs = [stream.costs for stream in streams if stream.costs is not None]
        costs, weigh = DatasetCosts(all_costs) if all_costs else None, None
        if self.loss_weight is not None:
            weigh = partial(loss_weights, costs=costs if self.loss_weight == 'cost' else None)
        permutations = EpochPermutations.beside([s.folder for s in streams if not s.is_local])
        run = Run.of([stream.size() for stream in streams], **self.run, load=permutations.load, costs=costs)
        return Opened(streams, run, weigh)

    def _open(
        self, generations: Mapping[str, Generation], again: Sequence[OpenedStream], *, asks: bool
    ) -> list[OpenedStream]:
        return open_streams(
            self._unopened if again else self.given,
            self.defaults,
            cache_limit=self.cache_limit,
            peers=self.peers,
            allow_unsafe_types=self.allow_unsafe_types,
            has_costs=self.has_costs,
            again=again,
            generations=generations,
            asks=asks,
            only_grows=self.follows,
        )

    def grown_since(self, state: ResumeState, streams: Sequence[OpenedStream]) -> dict[str, Generation]:
        """By name, the generations that the state's streams were of, where these now are of another one."""
        now = {stream.name: stream.fingerprint for stream in streams}
        then = {stream['name']: stream['fingerprint'] for stream in state.pinned.get('streams', ())}
        if all(now.get(name) == fingerprint for name, fingerprint in then.items()):
            return {}
        found = {str(name): Generation.of(then[name]) for name in now if name in then}
        return {name: generation for name, generation in found.items() if generation is not None}

    # -- passes over data that grow --------------------------------------------------------------------------------

    def check(self, run: Run, opened: Sequence[OpenedStream]) -> None:
        """Refuse what makes a pass over grown data inexact.

        Raises:
            ConfigError: epochs are no whole passes, the order is MosaicML's, or data are of another format.
        """
        if not self.follows:
            return
        order = run.config()
        resolved = {'shuffle_algo': order.algorithm, 'sampling_method': order.sampling, 'decisions': run.decisions}
        refuse_exclusions({**self.settings, **resolved, 'streams': opened})
        if any(stream.shards[0].made_from for stream in opened):
            raise ConfigError(
                f'Under `on_growth` {self.on_growth!r} epochs are those of an index.json. It does not go with data '
                f"without an index.json; convert them, or set `on_growth` to 'ignore'."
            )

    def next_generations(self, streams: Sequence[OpenedStream], *, is_first: bool) -> dict[str, Generation]:
        """By stream name, what a pass takes that begins now. All ranks call it, and get the same.

        Args:
            streams: as they were opened last.
            is_first: whether nothing was read before.

        Raises:
            StreamError: data have changed, and not only grown.
            EmptyDatasetError: nothing was appended in time.
            ConfigError: there are several ranks, and no process group by which they agree.
        """
        begun, is_said = time.monotonic(), False
        while True:
            found = decided_by_first(lambda: self._look(streams, is_first=is_first))
            if found is not None:
                return found
            if decided_by_first(lambda: time.monotonic() - begun > self.growth_wait):
                raise EmptyDatasetError(
                    f"Every sample was read, `on_growth` is 'wait', and nothing was appended within "
                    f'{self.growth_wait:g} s. Resume the run when there is more, or raise `growth_wait`.'
                )
            if not is_said:
                _log.info('Every sample was read. Waiting up to %g s for others.', self.growth_wait)
                is_said = True
            time.sleep(min(_POLL, self.growth_wait / 4))

    def _look(self, streams: Sequence[OpenedStream], *, is_first: bool) -> dict[str, Generation] | None:
        """What a pass takes; None if there is nothing yet."""
        now = {stream.name or '': Generation.of(stream.fingerprint) for stream in streams}
        whole = {name: Generation(generation.digest) for name, generation in now.items() if generation is not None}
        indexes = look_at_indexes(
            self._unopened, self.defaults, allow_unsafe_types=self.allow_unsafe_types, generations=whole
        )
        found: dict[str, Generation] = {}
        for name, index in indexes.items():
            if not isinstance(index, IndexFile) or index.fingerprint != whole[name].digest:
                raise StreamError(
                    f'Data under `on_growth` {self.on_growth!r} only grow, but the index of stream {name!r} no longer '
                    f'begins with the shards that the run has read. Restore it, or start a new run.'
                )
            grown = 0 if index.digest == self.passed_over else len(index.shards) - index.offered.stop
            if grown:
                _log.info('%d shards were appended to stream %s, which has %d.', grown, name, len(index.shards))
            elif self.on_growth == 'wait' and not is_first:
                return None
            is_delta = grown and not is_first and self.on_growth != 'next_pass'
            found[name] = Generation(index.digest, first=index.offered.stop if is_delta else 0)
        return found


class GrowingSequence(DatasetAttributes):
    """A run through the samples of data that may grow."""

    _opener: Opener
    _opened: Opened
    _decided_for: int | None = None  # the epoch whose samples were decided last

    @abstractmethod
    def _read(self, opened: Opened) -> None:
        """Read these streams from now on. If it raises, nothing has changed."""

    @abstractmethod
    def _show_opened(self) -> None:
        """Let the given streams say what is read."""

    def _run_over(self, state: ResumeState) -> tuple[Run, Opened | None]:
        """The run over the samples of a state, where others were appended since."""
        may_go_on = not self._opener.is_packed and (self.follows_growth or self.run.asked.on_mixture_change == 'refuse')
        generations = self._opener.grown_since(state, self._opened.streams) if may_go_on else {}
        if not generations:
            return self.run, None
        opened = self._opener.open(generations, self._opened.streams)
        return opened.run, opened

    def take(self, there: Continuation) -> None:
        self._decided_for, before = None, self._opened.streams
        if there.opened is not None:
            self._read(there.opened)
        super().take(there)
        if there.opened is not None:
            self._show_opened()
        for was, stream in zip(before, self._opened.streams, strict=True):
            if stream.fingerprint != was.fingerprint and not self.topology.rank and not self.follows_growth:
                _log.warning(
                    'Stream %s has %d shards, of which the run goes on with %d: the others were appended since it '
                    "began. `on_growth` 'next_pass' takes them from the next epoch on.",
                    stream.title, stream.stored_shards, len(stream.shards),
                )  # fmt: skip

    @property
    def on_growth(self) -> OnGrowth:
        """What epochs take of samples that are appended."""
        return self._opener.on_growth

    @property
    def follows_growth(self) -> bool:
        """Whether epochs take samples that are appended."""
        return self._opener.follows

    @property
    def epochs_differ(self) -> bool:
        """Whether epochs may have different numbers of batches, as `SampleSequence.epochs_differ`, or by growth."""
        return super().epochs_differ or self.follows_growth

    def decided(self, *args: Any, **options: Any) -> Run:
        if self.follows_growth:
            raise ConfigError(
                f'Decided proportions belong to the data that a run began with, but `on_growth` '
                f"{self._opener.on_growth!r} follows others. Set it to 'ignore', or give a `schedule`."
            )
        return super().decided(*args, **options)

    def take_growth(self, *, evaluates: bool = False, remainder: Remainder | None = None) -> None:
        """Decide which samples the next pass takes, if it begins an epoch; see `on_growth`.

        Loaders and trainers' plugins call it on all ranks before the pass. Again before the same pass it does nothing.

        Args:
            evaluates: whether the pass is one of evaluation, which reads the same epoch always.
            remainder: the loader's; None: it has none of its own.

        Raises:
            StreamError, EmptyDatasetError, ConfigError: as `Opener.next_generations`.
        """
        if evaluates and self._opener.follows:
            raise ConfigError(
                'A loader for evaluation reads one epoch always, without samples that are appended. Set `on_growth` of '
                "its dataset to 'ignore'."
            )
        refuse_exclusions({'on_growth': self._opener.on_growth, 'remainder': remainder})
        (epoch, start), takeover = self.progress.next(rank=self.topology.rank), self.mixture.takeover
        # A checkpoint may have been taken after the decision.
        is_decided = epoch == self._decided_for or (
            takeover.positions and (takeover.epoch, takeover.sample) == (epoch, 0)
        )
        if not self._opener.follows or start or is_decided:
            return
        self._opener.check(self.run, self._opened.streams)  # a checkpoint may have named the order
        if self.topology.world_size > 1 and not has_group():
            raise ConfigError(
                f'{self.topology.world_size} ranks agree on the samples of an epoch through the process group of '
                f"torch.distributed, but there is none. Initialize it, or set `on_growth` to 'ignore'."
            )
        streams, state, fresh = self._opened.streams, self.resume_state(epoch, 0), self.progress.fresh
        generations = self._opener.next_generations(streams, is_first=not epoch)
        while any(Generation.of(s.fingerprint) != generations[s.name or ''] for s in self._opened.streams):
            try:
                opened = self._opener.open(generations, streams)
            except EmptyDatasetError as error:  # on every rank
                if not any(generation.first for generation in generations.values()):
                    raise
                _log.info('The new samples are passed over. %s', error)
                self._opener.passed_over = next(iter(generations.values())).digest
                generations = self._opener.next_generations(streams, is_first=False)
                continue
            run = opened.run
            if not fresh:
                run, _ = run.resumed(state, self._world(), may_change_mixture=True)
            self._read(opened)
            self.run = run
            self._show_opened()
            if not fresh:
                self.progress.load(epoch, 0)  # no position is of the samples before, from now on
        self._decided_for = epoch


def _lacking(streams: Sequence[OpenedStream], generations: Mapping[str, Generation]) -> OpenedStream | None:
    """A stream that is not of its generation, or None if all are."""
    wanted = ((stream, generations.get(stream.name or '')) for stream in streams)
    return next((s for s, generation in wanted if generation not in (None, Generation.of(s.fingerprint))), None)
