"""Datasets: of streams, read in the order of a plan or at random, and of a local folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from headrace.dataset.arguments import documented, refuse_unused_overrides, takes
from headrace.dataset.attributes import DatasetAttributes, SamplesById
from headrace.dataset.batch_keys import (
    BAD_SAMPLE_KEY,
    LOSS_WEIGHT_KEY,
    PADDING_KEY,
    ReservedKey,
)
from headrace.dataset.facts import dataset_facts
from headrace.dataset.growth import Opened, Opener
from headrace.dataset.options import DatasetArguments
from headrace.dataset.plain_pass import refuse_dealing, samples_of_pass
from headrace.dataset.prefetch.limits import check_predownload, require_room, warn_of_shared_shards, warn_without_room
from headrace.dataset.ranks import meet_in_group
from headrace.dataset.reading.batch_reader import (
    AHEAD,
    BatchKey,
    BatchReader,
    Pass,
    PassRequest,
    SampleSource,
    Weigh,
)
from headrace.dataset.reading.sample_pool import SamplePool
from headrace.dataset.reading.skipping_reader import SkippingReader
from headrace.dataset.statistics import StreamUnit
from headrace.dataset.streams.columns import (
    column_names,
    refuse_different_columns,
    refuse_different_meanings,
    refuse_unpaddable_columns,
)
from headrace.dataset.streams.open_streams import OpenedStream
from headrace.dataset.streams.stream import read_selection, stream_facts, streams_given, streams_registry
from headrace.errors import ConfigError
from headrace.errors.display import Facts, FactsRepr
from headrace.errors.exclusions import refuse_exclusions, settings_of
from headrace.errors.redaction import logger_of
from headrace.format import JoinedShards, ShardInfo, number_abbrev_to_int
from headrace.order import (
    BatchPlan,
    BatchSpec,
    Mixture,
    OrderConfig,
    Schedule,
    Topology,
    parse_skip,
)
from headrace.order.config import BatchCost
from headrace.order.state import decisions_in
from headrace.order.topology import check_batch_size
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import Peers
from headrace.tensors.padding import Pad

_log = logger_of(__name__)


@documented(DatasetArguments)
class StreamingDataset(DatasetAttributes, IterableDataset[Any], FactsRepr):
    """Samples of one or more streams, in one global order whatever the number of ranks and workers.

    Iterating gives this worker's samples of the next epoch; `dataset[i]` gives any sample by its global id (the
    samples of stream 0, then those of stream 1, ...). A subclass that overrides `get_item` or `__getitem__` changes
    samples wherever they are read. Give it to `headrace.StreamingDataLoader`, which reads whole batches and keeps the
    position, or to a plain `torch.utils.data.DataLoader`.

    Raises:
        ValueError: arguments that break a rule, or that contradict each other.
        FileNotFoundError, RuntimeError: a stream has no index, or no samples.
        OSError: a store cannot be reached, or refuses.
    """

    stream_unit: StreamUnit = 'samples'
    """What the shares and counts of streams in batches are of: samples, or tokens of rows that several samples make."""

    @takes(DatasetArguments)
    def __init__(self, options: DatasetArguments) -> None:
        given = streams_given(options.streams, options.remote, options.local)
        if given is not None and (options.stream_config or options.stream_name != 'stream'):
            raise ConfigError(
                f'`stream_name` and `stream_config` make the one stream of `remote` and `local`, but are '
                f'{options.stream_name!r} and {options.stream_config!r} beside `streams`. Make the streams of this '
                f'class, and leave both out.'
            )
        check_predownload(options.predownload, options.batch_size)
        refuse_unused_overrides(type(self), StreamingDataset)
        ranges = parse_skip(options.skip)
        self.on_bad_sample = options.on_bad_sample
        self.predownload = options.predownload
        self.cache_limit = options.cache_bytes
        self.allow_unsafe_types = options.allow_unsafe_types
        self.stream_name, self.stream_config = options.stream_name, options.stream_config
        if given is None:
            place = {'remote': options.remote, 'local': options.local, 'split': options.split}
            given = [streams_registry.make(options.stream_name, options.stream_config, **place)]
            options = replace(options, split=None)
        self.streams = list(given)
        node_options = PeerOptions.of(options.peers)
        self.peers = None if node_options is None else Peers(node_options, meet_in_group)
        """The nodes that share their caches."""
        options = replace(
            options,
            streams=self.streams,
            peers=node_options,
            batch_cost=BatchCost.of(options.batch_cost),
            **read_selection(options),
        )
        refuse_exclusions({**settings_of(options), 'stream_unit': self.stream_unit})
        self._opener = Opener(
            options,
            peers=self.peers,
            stream_unit=self.stream_unit,
            run={
                'order': OrderConfig.of(options),
                'epoch_size': (None if options.epoch_size is None else number_abbrev_to_int(options.epoch_size))
                or None,
                'schedule': Schedule.of(options.schedule) if options.schedule else None,
                'when_exhausted': options.when_exhausted,
                'on_mixture_change': options.on_mixture_change,
                'skip': ranges,
                'balance': options.balance,
                'decisions': decisions_in(options.decisions),
            },
        )
        opened = self._opener.open()
        self._opener.check(opened.run, opened.streams)
        if self.cache_limit is not None:
            require_room(self.cache_limit, opened.streams)
        super().__init__(opened.run, options, skip=ranges)
        self._is_checked = False
        self._read(opened)
        if options.remainder == 'exact' or self.uneven is not None:
            self.check_columns(PADDING_KEY)
        if options.loss_weight is not None:
            self.check_columns(LOSS_WEIGHT_KEY)
        if options.global_batch_size is not None:
            ranks = self.topology if options.topology else Topology()
            check_batch_size(options.global_batch_size, ranks, options.uneven)
        if options.topology is not None or not self.run.needs_batch_size:
            self.order(0)  # refuses an unknown order now, before the first batch
        self.run.config().warn_of_small_blocks(self.mixture)
        self._show_opened()
        self.stream_names = tuple(stream.name or '' for stream in self.streams)
        """Names of the streams of batches' rows, by stream number."""

    def _read(self, opened: Opened) -> None:
        streams, mixture = opened.streams, opened.run.mixture
        if self.is_columnar and self.stream_unit == 'samples':  # rows have their columns
            refuse_different_meanings(streams, mixture)
        pool, skipping = SamplePool(streams, mixture, cache_limit=self.cache_limit), None
        if self.on_bad_sample == 'skip':
            self.check_columns(BAD_SAMPLE_KEY, streams)
            skipping = SkippingReader(pool, from_user=not self.is_columnar)
        self._opened, self._sample_pool = opened, pool  # nothing raises from here on
        self.skipping_reader: SkippingReader | None = skipping
        """The reader that skips bad samples, under ``on_bad_sample='skip'``."""
        self.shards: Sequence[ShardInfo] = JoinedShards([stream.shards for stream in streams])
        self.forget_sizes()

    def _show_opened(self) -> None:
        opened, mixture = self._opened.streams, self.mixture
        weights = zip(mixture.choose, mixture.proportions, mixture.repeats, strict=True)
        for stream, found, (choose, proportion, repeat) in zip(self.streams, opened, weights, strict=True):
            stream.show(found, choose=choose, proportion=proportion, repeat=repeat)

    @property
    def weigh(self) -> Weigh | None:
        """Gives the weights of a batch's rows, under `loss_weight`."""
        return self._opened.weigh

    def _facts(self) -> Facts:
        return dataset_facts(self)

    def check_columns(self, key: ReservedKey, streams: Sequence[OpenedStream] | None = None) -> None:
        """Check that no column has the name of a reserved key.

        Args:
            key: of batches.
            streams: the dataset's, by default.

        Raises:
            ConfigError: one has.
        """
        for stream in self.pool.streams if streams is None else streams:
            for names in column_names(stream):
                key.check(names)

    def require_equal_columns(self, *, joined: bool = False) -> None:
        """Check that streams that share batches have equal columns, unless a subclass changes samples.

        Args:
            joined: whether a rank's batch holds several device batches, so that all streams share it.

        Raises:
            StreamError: columns are missing in a stream, or are of different types; names streams and columns.
        """
        if self.is_columnar:
            batching = 'random' if joined else self.run.config().batching
            refuse_different_columns(self.pool.streams, self.mixture, batching)

    def check_sharing(self, plan: BatchPlan) -> None:
        """Check that the streams that share batches of a plan have equal columns; StreamError: they do not."""
        is_joined = plan.order.units > plan.topology.replicas
        if is_joined or plan.batch_size > 1:
            self.require_equal_columns(joined=is_joined)

    def check_mixture(self, mixture: Mixture) -> None:
        if self.is_columnar:
            refuse_different_columns(self.pool.streams, mixture, self.run.config().batching)

    def check_pad(self, pad: Pad) -> None:
        """Check that columns can be padded, unless a subclass changes samples.

        Raises:
            ConfigError: one is not there, holds no arrays, or cannot hold the value; or the name of a length or mask is
                that of a column.
        """
        if self.is_columnar:
            refuse_unpaddable_columns(self.pool.streams, self.mixture, pad)

    def _padding_of(self, pad: Pad | None) -> Pad | None:
        """The settings with the axis of each column: the samples of sound are its last."""
        tensors = (kind for stream in self.pool.streams for kind in stream.tensor_columns if kind is not None)
        ragged = {column.name for kind in tensors for column in kind.columns if column.settings.is_ragged}
        return pad and pad.with_last_axis(ragged)

    def begin_pass(
        self, batches: BatchSpec | None = None, *, place: tuple[int, int] | None = None, worker: int = 0
    ) -> BatchPlan:
        """Begin a pass, and freeze the defaults for the rest of the run.

        Args:
            batches: how the sequence is cut; by default `batch_spec()`.
            place: the epoch and the position to begin at; by default the end of the last pass, or a state's position.
            worker: number of the worker process that begins it.
        """
        batches = batches or self.batch_spec()
        topology, progress = batches.topology, self.progress
        run = self.run.begun(batches)
        plan = run.plan(*(place or progress.upcoming(rank=topology.rank, worker=worker)), batches)
        self.run, self._last_batches = run, batches
        if self.peers is not None:
            from headrace.storage.cache.peer_server import serve  # its modules take long to import

            caches = [stream.cache for stream in self.pool.streams]
            serve(self.peers, caches, topology.world_size, topology.num_nodes)
        process = get_worker_info()
        is_logging_process = not topology.rank and (process is None or process.id == 0)
        # A plain loader forks new workers for each epoch.
        is_first = is_logging_process and not self._is_checked and not progress.begun(rank=topology.rank, worker=worker)
        if is_first:
            self._is_checked = True
            if erased := len(self.pool.erased):
                _log.warning(
                    'Erased samples: %d. Batches of samples have another sample in the place of each, and mark that '
                    'row as bad: see own_bad_rows of the loader. Sequences of tokens leave them out.',
                    erased,
                )
            if self.cache_limit is not None:
                warn_without_room(self.cache_limit, self.pool.streams, *self.read_order(), topology.nodes)
            if topology.replicas > 1 and batches.global_batch_size % topology.replicas and self.weigh is None:
                _log.info(
                    '%d ranks share batches of %d samples unevenly. With `loss_weight` the mean loss of the ranks is '
                    'that of the batch.',
                    topology.replicas, batches.global_batch_size,
                )  # fmt: skip
            if self._has_node_parts:
                warn_of_shared_shards(self.pool.streams, *self.read_order(), topology.nodes)
        if place is not None and place != progress.next(rank=topology.rank):
            progress.load(*place)
        progress.begin(rank=topology.rank, worker=worker)
        if is_first and (waste := run.length_waste(plan)) is not None:
            for note in waste.notes():
                _log.info('%s', note)
        return plan

    def read_order(self) -> tuple[Mixture, OrderConfig]:
        """The mixture and the order of the samples that are read."""
        return self.mixture, self.order_config

    @property
    def _has_node_parts(self) -> bool:
        """Whether a node reads only the canonical nodes that are its own."""
        return True

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def is_columnar(self) -> bool:
        own = type(self)
        if own.__getitem__ is not StreamingDataset.__getitem__ or own.get_item is not StreamingDataset.get_item:
            return False
        return 'get_item' not in vars(self)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:  # noqa: ARG002 - MosaicML Streaming's subclasses pass it
        """One sample, by an id from 0 to `size` - 1. Override it to change samples; `dataset[i]` and loaders call it.

        Args:
            sample_id: the sample's global id.
            retry: has no effect; `download_retry` says how often a download is tried again.
        """
        return self.pool.sample(sample_id)

    def promised_token_shares(self) -> npt.NDArray[np.float64]:
        """The share of each stream in the tokens of batches that the mixture promises, float64[streams].

        Raises:
            TypeError: `stream_unit` is not 'tokens'.
        """
        raise TypeError(f'Batches of a {type(self).__name__} count samples, not tokens; those of a PackedDataset do.')

    def begin_batches(self, request: PassRequest) -> Pass:
        """Begin a pass in batches, as `begin_pass` does."""
        plan = self.begin_pass(request.batches, place=request.place)
        if request.collate_fn is None:
            self.check_sharing(plan)
        epoch, start = plan.order.epoch, plan.start
        numbers = chain.from_iterable(takewhile(len, (plan.batches(first, AHEAD) for first in count(step=AHEAD))))
        keys = (BatchKey(epoch, start, number, request.continues) for number in numbers)
        return Pass(plan, self.reader_of(plan, request), keys)

    def reader_of(self, plan: BatchPlan, request: PassRequest) -> BatchReader:
        """The reader of a pass; it gets the samples, the plan and the run, but not the dataset."""
        return BatchReader(
            self.sample_source(),
            plan,
            self.run,
            request.collate_fn,
            mark_streams=request.mark_streams,
            pad=self._padding_of(request.pad),
            weigh=self.weigh,
        )

    def sample_source(self) -> SampleSource:
        """The part of the dataset that readers get."""
        return SampleSource(
            pool=self.pool,
            samples=self.pool if self.is_columnar else self,
            is_columnar=self.is_columnar,
            skipping_reader=self.skipping_reader,
            shuffle_seed=self.shuffle_seed,
            predownload=self.predownload,
            progress=self.progress,
            peers=self.peers,
        )

    def __iter__(self) -> Iterator[Any]:
        """This worker's samples of the next epoch, one by one."""
        if self._opener.follows:
            raise ConfigError(
                'A plain DataLoader has workers that know nothing of samples that were appended. Use a '
                f"headrace.StreamingDataLoader, or set `on_growth` {self._opener.on_growth!r} to 'ignore'."
            )
        refuse_dealing(self, self.topology.replicas)
        if self.uneven is not None or self.weigh is not None:
            raise ConfigError(
                'A plain DataLoader knows neither the rows of batches under `uneven` nor the weights of `loss_weight`. '
                'Use a headrace.StreamingDataLoader, or leave both out.'
            )
        if self.run.settings.order.batch_cost is not None:
            raise ConfigError(
                'With `batch_cost` the dataset cuts the batches, but a plain DataLoader, or a loop over the dataset, '
                'takes samples one by one. Use headrace.StreamingDataLoader, or remove `batch_cost`.'
            )
        return self._plain_pass()

    def _plain_pass(self) -> Iterator[Any]:
        return samples_of_pass(self.sample_source(), self.begin_pass)


class LocalDataset(SamplesById, Dataset[Any], FactsRepr):
    """Samples of a local folder by number, for a `torch.utils.data.DataLoader` with a sampler of your own.

    Args:
        local: the folder.
        split: its sub-folder that holds index.json.
        allow_unsafe_types: whether to open data with pickled columns, which can run code.

    Raises:
        RuntimeError: no index there, or no samples.
        ValueError: the index breaks the format's rules.
    """

    def __init__(self, local: str, split: str | None = None, *, allow_unsafe_types: bool = False) -> None:
        self.local, self.split = local, split or ''
        dataset = StreamingDataset(local=local, split=split, allow_unsafe_types=allow_unsafe_types)
        (self._stream,), self._sample_pool = dataset.streams, dataset.pool
        self.shards: Sequence[ShardInfo] = dataset.shards
        """The shards' entries in the index."""

    def _facts(self) -> Facts:
        _, rows = stream_facts(self._stream)
        return Facts(type(self).__name__, [row for row in rows if row[0] != 'weight'])

    def __len__(self) -> int:
        return self.num_samples

    def get_item(self, sample_id: int) -> Any:
        """One sample, by a number from 0 to `size` - 1. Override it to change samples; `dataset[i]` calls it."""
        return self.pool.sample(sample_id)
