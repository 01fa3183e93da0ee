"""The opened streams and the run of a dataset, opened again when the data has grown."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.dataset.batch_keys import loss_weights
from headrace.dataset.cache_files import EpochPermutations
from headrace.dataset.options import DatasetArguments
from headrace.dataset.ranks import decided_by_first
from headrace.dataset.reading.batch_reader import Weigh
from headrace.dataset.statistics import StreamUnit
from headrace.dataset.streams.open_streams import OpenedStream, look_at_indexes, open_streams
from headrace.dataset.topology import detect_topology
from headrace.errors import ConfigError, EmptyDatasetError, StreamError
from headrace.errors.exclusions import refuse_exclusions, settings_of
from headrace.errors.redaction import logger_of
from headrace.format.entries import INDEX_NAME
from headrace.format.index import Generation, IndexFile
from headrace.options.dataset import OnGrowth
from headrace.order import ResumeState, Run
from headrace.selection.costs import DatasetCosts
from headrace.storage.cache.peers import Peers

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


@dataclass
class Opener:
    """The options with which a dataset's streams are opened."""

    options: DatasetArguments
    _: KW_ONLY
    peers: Peers | None
    stream_unit: StreamUnit
    run: Mapping[str, Any]
    """Arguments of `Run`, beside those that follow from the streams."""
    passed_over: str = field(init=False, default='')
    """Digest of the index whose new samples `where` leaves out."""

    def __post_init__(self) -> None:
        options, streams = self.options, self.options.streams or ()
        self._unopened = [copy.copy(stream) for stream in streams]  # which do not show what was opened
        named = options.cost is not None or all(stream.cost is not None for stream in streams)
        weighs = options.balance is not None or options.loss_weight == 'cost'
        has_costs = named or weighs or self.run['order'].bucket is not None
        self._has_costs = has_costs and self.stream_unit == 'samples'

    @property
    def on_growth(self) -> OnGrowth:
        return self.options.on_growth

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
                    f'the run when this rank sees the same {INDEX_NAME} as the others. After a rollback, resume from a '
                    f'checkpoint before the rows that were taken back; if the index was replaced, restore it.'
                )
            time.sleep(pause)
            streams = self._open(generations, again, asks=True)
        all_costs = [stream.costs for stream in streams if stream.costs is not None]
        costs, weigh = DatasetCosts(all_costs) if all_costs else None, None
        if self.options.loss_weight is not None:
            weigh = partial(loss_weights, costs=costs if self.options.loss_weight == 'cost' else None)
        permutations = EpochPermutations.beside([s.folder for s in streams if not s.is_local])
        run = Run.of([stream.size() for stream in streams], **self.run, load=permutations.load, costs=costs)
        return Opened(streams, run, weigh)

    def _open(
        self, generations: Mapping[str, Generation], again: Sequence[OpenedStream], *, asks: bool
    ) -> list[OpenedStream]:
        return open_streams(
            self._unopened if again else self.options.streams or (),
            self.options,
            cache_limit=self.options.cache_bytes,
            peers=self.peers,
            allow_unsafe_types=self.options.allow_unsafe_types,
            has_costs=self._has_costs,
            again=again,
            generations=generations,
            asks=asks,
            only_grows=self.follows,
        )

    def open_at(self, state: ResumeState, streams: Sequence[OpenedStream]) -> Opened | None:
        """Open the data of a state, where these streams are of another generation; None if they are of that one."""
        now = {stream.name: stream.fingerprint for stream in streams}
        then = {stream['name']: stream['fingerprint'] for stream in state.pinned.get('streams', ())}
        if all(now.get(name) == fingerprint for name, fingerprint in then.items()):
            return None
        recorded = {str(name): Generation.of(then[name]) for name in now if name in then}
        generations = {name: generation for name, generation in recorded.items() if generation is not None}
        return self.open(generations, streams) if generations else None

    # -- passes over data that grow --------------------------------------------------------------------------------

    def check(self, run: Run, opened: Sequence[OpenedStream]) -> None:
        """Refuse what makes a pass over grown data inexact.

        Raises:
            ConfigError: epochs are not whole passes, the order is MosaicML's, or data are of another format.
        """
        if not self.follows:
            return
        order = run.config()
        resolved = {'shuffle_algo': order.algorithm, 'sampling_method': order.sampling, 'decisions': run.decisions}
        refuse_exclusions({**settings_of(self.options), **resolved, 'streams': opened})
        if any(stream.shards[0].made_from for stream in opened):
            raise ConfigError(
                f'Under `on_growth` {self.on_growth!r} epochs are those of an index.json. It does not go with data '
                f"without an index.json; convert them, or set `on_growth` to 'ignore'."
            )

    def open_grown(self, streams: Sequence[OpenedStream], *, is_first: bool) -> Opened | None:
        """Open what a pass takes that begins now; None if that is open. All ranks call it, and get the same.

        The arguments are those of `next_generations`.
        """
        generations = self.next_generations(streams, is_first=is_first)
        while any(Generation.of(stream.fingerprint) != generations[stream.name or ''] for stream in streams):
            try:
                return self.open(generations, streams)
            except EmptyDatasetError as error:  # noqa: PERF203 - on every rank
                if not any(generation.first for generation in generations.values()):
                    raise
                _log.info('The new samples are passed over. %s', error)
                self.passed_over = next(iter(generations.values())).digest
                generations = self.next_generations(streams, is_first=False)
        return None

    def next_generations(self, streams: Sequence[OpenedStream], *, is_first: bool) -> dict[str, Generation]:
        """By stream name, what a pass takes that begins now.

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
            if decided_by_first(lambda: time.monotonic() - begun > self.options.growth_wait):
                raise EmptyDatasetError(
                    f"Every sample was read, `on_growth` is 'wait', and nothing was appended within "
                    f'{self.options.growth_wait:g} s. Resume the run when there is more, or raise `growth_wait`.'
                )
            if not is_said:
                _log.info('Every sample was read. Waiting up to %g s for others.', self.options.growth_wait)
                is_said = True
            time.sleep(min(_POLL, self.options.growth_wait / 4))

    def _look(self, streams: Sequence[OpenedStream], *, is_first: bool) -> dict[str, Generation] | None:
        """What a pass takes; None if there is nothing yet."""
        now = {stream.name or '': Generation.of(stream.fingerprint) for stream in streams}
        whole = {name: Generation(generation.digest) for name, generation in now.items() if generation is not None}
        indexes = look_at_indexes(
            self._unopened, self.options, allow_unsafe_types=self.options.allow_unsafe_types, generations=whole
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


def _lacking(streams: Sequence[OpenedStream], generations: Mapping[str, Generation]) -> OpenedStream | None:
    """A stream that is not of its generation, or None if all are."""
    wanted = ((stream, generations.get(stream.name or '')) for stream in streams)
    return next((s for s, generation in wanted if generation not in (None, Generation.of(s.fingerprint))), None)
