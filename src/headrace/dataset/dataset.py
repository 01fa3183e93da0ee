"""Datasets: of streams, read in the order of a plan or at random, and of a local folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, takewhile
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from headrace.dataset.arguments import by_name, refuse_unused_overrides
from headrace.dataset.attributes import DatasetAttributes, SamplesById
from headrace.dataset.batch_keys import (
    BAD_SAMPLE_KEY,
    LOSS_WEIGHT_KEY,
    PADDING_KEY,
    BadSamplePolicy,
    LossWeight,
    ReservedKey,
    parse_policy,
)
from headrace.dataset.facts import dataset_facts
from headrace.dataset.growth import OnGrowth, Opened, Opener
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
from headrace.dataset.streams.columns import (
    column_names,
    refuse_different_columns,
    refuse_different_meanings,
    refuse_unpaddable_columns,
)
from headrace.dataset.streams.open_streams import OpenedStream
from headrace.dataset.streams.stream import (
    OnChangedData,
    Stream,
    StreamDefaults,
    stream_facts,
    streams_given,
    streams_registry,
)
from headrace.errors import ConfigError
from headrace.errors.display import Facts, FactsRepr
from headrace.errors.exclusions import refuse_exclusions
from headrace.errors.redaction import logger_of
from headrace.format import JoinedShards, ShardInfo, bytes_to_int, number_abbrev_to_int
from headrace.order import (
    DEFAULT_SEED,
    BatchPlan,
    BatchSpec,
    Exhaustion,
    Mixture,
    MixtureChange,
    OrderConfig,
    Remainder,
    Schedule,
    SchedulePoint,
    SkipRange,
    Topology,
    parse_skip,
)
from headrace.order.config import BatchCost
from headrace.order.skip import refuse_documents
from headrace.order.state import decisions_in
from headrace.order.topology import Uneven, check_batch_size
from headrace.selection import Fraction, Predicate, Subset
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import Peers
from headrace.tensors.decoding import DecodeLike
from headrace.tensors.padding import Pad

_log = logger_of(__name__)


class StreamingDataset(DatasetAttributes, IterableDataset[Any], FactsRepr):
    """Samples of one or more streams, in one global order whatever the number of ranks and workers.

    Iterating gives this worker's samples of the next epoch; `dataset[i]` gives any sample by its global id (the
    samples of stream 0, then those of stream 1, ...). A subclass that overrides `get_item` or `__getitem__` changes
    samples wherever they are read. Give it to `headrace.StreamingDataLoader`, which reads whole batches and keeps the
    position, or to a plain `torch.utils.data.DataLoader`.

    Args:
        streams: the streams to mix. Or give one by `remote`, `local` and `split`, and None or an empty list here.
        remote, local, split: see `Stream`; with `streams`, defaults for them.
        download_retry, download_timeout, validate_hash, keep_zip: see `Stream`; defaults for all streams.
        endpoint_url, region, anonymous, requester_pays: see `Stream`; defaults for all streams.
        store_options, on_changed_data: see `Stream`; defaults for all streams.
        subset, fraction, fraction_seed, where: see `Stream`; defaults for all streams. Ids, sizes and weights count
            the samples that are offered.
        columns: names of the columns to read, for streams that do not name their own; no other is decoded. None: all.
        cost, format, format_options, decode: see `Stream`; a default for all streams.
        epoch_size: samples in an epoch, as a number or text ('1.5m'); needs proportions, or no weights at all.
        predownload: samples ahead of each worker whose shards are prefetched; None: 65,536, or 8 batches if those are
            more, and 512 MiB at most.
        cache_limit: bytes that the streams' folders may take on this machine, as a number or text ('100gb').
        peers: a mapping, to have nodes give each other the shards in their caches. Empty, the ranks of the process
            group find each other; or `hosts` lists the nodes. `port`, `interface` and `token_env` are optional; see
            ``docs/tuning.md``. A process of each node serves from the first pass on. None: each node downloads for
            itself.
        sampling_method: which samples an epoch takes of a stream that it takes in part: 'balanced' takes others in each
            epoch, 'fixed' the same. 'fixed' does not go with a schedule.
        sampling_granularity: samples of a shard that are chosen together, to read fewer shards. With the native order
            more than 1 needs 'fixed'.
        partition_algo: how MosaicML's orders split samples over nodes.
        num_canonical_nodes: parts of the data that are read side by side. Another number gives another order. None: 1
            for each 64 shards, 64 at most. With MosaicML Streaming's orders, None is the number of nodes, or 64 times
            as many for 'py1s' and 'py2s'.
        batch_size: samples of one device batch.
        global_batch_size: samples of a batch over all ranks, in place of it.
        uneven: how ranks share a global batch that they do not divide; None: an error. Each has a row more or less than
            others. 'pad' gives every rank equally many rows: one with a row less repeats a row, as padding. 'ragged'
            does not. Padding is marked in every batch under `headrace.PADDING`, and does not count.
        shuffle: whether to shuffle.
        shuffle_algo: None or 'native' for headrace's own. Those of MosaicML Streaming, sample for sample, are 'py1e',
            'py1br', 'py1b', 'py1s', 'py2s' and 'naive'. A MosaicML Streaming checkpoint makes None 'py1e'.
        shuffle_seed: key of the order. A checkpoint's seed replaces the default; a resume refuses any other one.
        shuffle_block_size: samples over which the shuffle spreads a shard, per canonical node.
        batching_method: how streams share a batch: 'random', 'stratified' for the streams' shares in each batch,
            'per_stream' for global batches of one stream each, or 'device_per_stream' for device batches of one.
        bucket: batches of a window of the sequence. Its samples are sorted by cost, so that those of a batch have
            similar ones; its batches are shuffled. See ``docs/lengths.md``.
        batch_cost: the most that a global batch may cost, in rows times the longest, so that batches differ in their
            numbers of rows. `batch_size` is the most. A number, or a mapping: `budget`; `multiple`, which divides the
            rows and must divide by the ranks, 8 by default; and `sum`, True for the sum of costs. `bucket` is 64 then
            by default.
        balance: deal the rows of a global batch to the ranks of a node so that their sums of cost to this power are
            nearly equal, with equal numbers of rows. 1, or 2 for attention.
        loss_weight: put the weight of each row into every batch, under `headrace.LOSS_WEIGHT`. The mean of weight times
            loss over the rows of a rank, averaged over ranks, is then the mean over the global batch: of samples for
            'samples', or weighted by `cost` for 'cost'.
        allow_unsafe_types: whether to open data with pickled columns, which can run code.
        replication: consecutive ranks that get the same samples.
        stream_name, stream_config: name of a class in `streams_registry` that makes the stream of `remote` and `local`,
            and more arguments for it.
        remainder: handling of the samples after the last full global batch. 'repeat' reads them, and repeats a few if
            ranks would get unequal numbers. 'exact' also marks the repeats in every batch under `headrace.PADDING`.
            'drop' drops them. None: 'repeat', or the choice of the evaluation.
        schedule: proportions that change during the run, instead of the streams' weights. Each point has `at` (samples
            of the run so far), `proportions` (by stream name) and `change` ('step', or 'linear' for a ramp from the
            point before).
        when_exhausted: action when an epoch has had every sample of a stream: 'repeat' begins its next pass, 'stop'
            ends the epoch, 'drop_stream' continues without it.
        on_mixture_change: action when a checkpoint has another mixture: 'refuse' raises; 'continue' uses the new
            mixture, with each stream at its position.
        decisions: decisions of an earlier run to repeat at their positions: a list, or a state that has them.
        skip: ranges of the run's global sequence to skip, after a loss spike: pairs [begin, end). Bounds count samples
            from the run's start (4096 or '4096sp'), or global batches of the present size ('1200ba'). Batches count as
            a trainer's steps would without `skip`. The position counts skipped samples, so each resume may add ranges.
            A range ahead of a checkpoint needs `on_mixture_change` 'continue'. With MosaicML Streaming's orders, and
            with batches of one stream, every global batch that a range touches is skipped.
        on_bad_sample: action at a sample whose data are missing or damaged. 'raise' raises the error. 'skip' logs it,
            puts another sample in its row, and marks the row in every batch under `headrace.BAD_SAMPLE`. Other
            errors, such as an outage or a full disk, raise in any case.
        topology: rank, world size and nodes; by default detected at the first `len` or `iter`.
        on_growth: the samples of an epoch where shards were appended to streams. 'ignore': those that the run began
            with. 'next_pass': all that are there when the epoch begins. 'delta': only the new ones, if there are any,
            before old ones come again. 'wait': only new ones, for which it waits. Ranks agree through the process group
            of torch.distributed.
        growth_wait: seconds for which 'wait' waits for new samples, before it raises an EmptyDatasetError.

    Raises:
        ValueError: arguments that break a rule, or that contradict each other.
        FileNotFoundError, RuntimeError: a stream has no index, or no samples.
        OSError: a store cannot be reached, or refuses.
    """

    @by_name
    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        endpoint_url: str | None = None,
        region: str | None = None,
        anonymous: bool | None = None,
        requester_pays: bool | None = None,
        store_options: Mapping[str, Any] | None = None,
        subset: Subset | Sequence[Sequence[int | str | None]] | None = None,
        fraction: Fraction | Sequence[float | str] | None = None,
        fraction_seed: int | None = None,
        where: Predicate | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        cost: str | None = None,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        peers: PeerOptions | Mapping[str, Any] | None = None,
        sampling_method: str = 'balanced',
        sampling_granularity: int = 1,
        partition_algo: str = 'relaxed',
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        uneven: Uneven | None = None,
        shuffle: bool = False,
        shuffle_algo: str | None = None,
        shuffle_seed: int = DEFAULT_SEED,
        shuffle_block_size: int | None = None,
        batching_method: str = 'random',
        bucket: int | None = None,
        batch_cost: int | Mapping[str, Any] | BatchCost | None = None,
        balance: float | None = None,
        loss_weight: LossWeight | None = None,
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = 'stream',
        stream_config: dict[str, Any] | None = None,
        remainder: Remainder | None = None,
        schedule: Schedule | Sequence[SchedulePoint | Mapping[str, Any]] = (),
        when_exhausted: Exhaustion = 'repeat',
        on_mixture_change: MixtureChange = 'refuse',
        decisions: Sequence[Any] | Mapping[str, Any] = (),
        skip: Sequence[SkipRange] = (),
        on_bad_sample: BadSamplePolicy = 'raise',
        topology: Topology | None = None,
        on_changed_data: OnChangedData = 'refresh',
        on_growth: OnGrowth = 'ignore',
        growth_wait: float = 600,
        format: str | None = None,  # noqa: A002 - the word for it
        format_options: Mapping[str, Any] | None = None,
        decode: DecodeLike | None = None,
    ) -> None:
        own = streams_given(streams, remote, local)
        if own is not None and (stream_config or stream_name != 'stream'):
            raise ConfigError(
                f'`stream_name` and `stream_config` make the one stream of `remote` and `local`, but are '
                f'{stream_name!r} and {stream_config!r} beside `streams`. Make the streams of this '
                f'class, and leave both out.'
            )
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f'`batch_size` must be at least 1 sample per device, but is {batch_size}.')
        if batch_size is not None and global_batch_size is not None:
            raise ConfigError(
                f'`batch_size`, per device, and `global_batch_size`, of all ranks, are both given, as {batch_size} and '
                f'{global_batch_size}. Leave one out.'
            )
        if uneven is not None and global_batch_size is None:
            raise ConfigError('`uneven` deals a `global_batch_size` to the ranks. Give it in place of `batch_size`.')
        if loss_weight not in (None, *get_args(LossWeight)):
            raise ConfigError(f'`loss_weight` must be one of {list(get_args(LossWeight))}, but is {loss_weight!r}.')
        if replication is not None and replication < 1:
            raise ConfigError(
                f'`replication` must be at least 1, the ranks that get the same samples, but is {replication}.'
            )
        check_predownload(predownload, batch_size)
        refuse_unused_overrides(type(self), StreamingDataset)
        ranges = refuse_documents(parse_skip(skip))
        self.on_bad_sample = parse_policy(on_bad_sample)
        self.predownload = predownload
        self.cache_limit = None if cache_limit is None else bytes_to_int(cache_limit)
        node_options = PeerOptions.of(peers)
        self.peers = None if node_options is None else Peers(node_options, meet_in_group)
        """The nodes that share their caches."""
        self.allow_unsafe_types = allow_unsafe_types
        self.stream_name, self.stream_config = stream_name, stream_config
        self.streams = (
            [streams_registry.make(stream_name, stream_config, remote=remote, local=local, split=split)]
            if own is None
            else list(own)
        )
        if not self.is_packed and any(stream.packing is not None for stream in self.streams):
            raise ConfigError('`packing` of a stream needs a PackedDataset, but this is a plain one. Leave it out.')
        batch_cost = BatchCost.of(batch_cost)
        settings = {**locals(), 'streams': self.streams, 'peers': node_options, 'packing': self.is_packed or None}
        del settings['self']  # a dataset that refers to itself would live until a garbage collection
        refuse_exclusions(settings)
        asked = OrderConfig.of(settings)
        named = cost is not None or all(stream.cost is not None for stream in self.streams)
        has_costs = named or asked.bucket is not None or balance is not None or loss_weight == 'cost'
        defaults = StreamDefaults.of({**settings, 'split': None if own is None else split})
        self._opener = Opener(
            given=self.streams,
            defaults=defaults,
            cache_limit=self.cache_limit,
            peers=self.peers,
            allow_unsafe_types=allow_unsafe_types,
            has_costs=has_costs and not self.is_packed,
            loss_weight=loss_weight,
            on_growth=on_growth,
            growth_wait=growth_wait,
            settings=settings,
            run={
                'order': asked,
                'epoch_size': (None if epoch_size is None else number_abbrev_to_int(epoch_size)) or None,
                'schedule': schedule if isinstance(schedule, Schedule) else Schedule.of(schedule) if schedule else None,
                'when_exhausted': when_exhausted,
                'on_mixture_change': on_mixture_change,
                'skip': ranges,
                'balance': balance,
                'decisions': decisions_in(decisions),
            },
        )
        if on_growth not in get_args(OnGrowth):
            raise ConfigError(f'`on_growth` must be one of {list(get_args(OnGrowth))}, but is {on_growth!r}.')
        if not growth_wait > 0:
            raise ConfigError(f'`growth_wait` must be above 0 seconds, but is {growth_wait!r}.')
        opened = self._opener.open()
        self._opener.check(opened.run, opened.streams)
        if self.cache_limit is not None:
            require_room(self.cache_limit, opened.streams)
        super().__init__(
            opened.run,
            skip=ranges,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            uneven=uneven,
            remainder=remainder,
            replication=replication,
            topology=topology,
        )
        self._is_checked = False
        self._read(opened)
        if remainder == 'exact' or uneven is not None:
            self.check_columns(PADDING_KEY)
        if loss_weight is not None:
            self.check_columns(LOSS_WEIGHT_KEY)
        if global_batch_size is not None:
            check_batch_size(global_batch_size, self.topology if topology else Topology(), uneven)
        if topology is not None or not self.run.needs_batch_size:
            self.order(0)  # refuses an unknown order now, before the first batch
        self.run.config().warn_of_small_blocks(self.mixture)
        self._show_opened()
        self.stream_names = tuple(stream.name or '' for stream in self.streams)
        """Names of the streams of batches' rows, by stream number."""

    def _read(self, opened: Opened) -> None:
        streams, mixture = opened.streams, opened.run.mixture
        if self.is_columnar and not self.is_packed:
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
        columns = (column for stream in self.pool.streams for kind in stream.tensor_columns for column in kind.columns)
        return pad and pad.with_last_axis({one.name for one in columns if one.settings.is_ragged})

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
        # A plain loader forks its workers anew for each epoch.
        is_first = is_logging_process and not self._is_checked and not progress.begun(rank=topology.rank, worker=worker)
        if is_first:
            self._is_checked = True
            if erased := len(self.pool.erased):
                _log.warning(
                    'Erased samples: %d. A batch has another sample in the place of each, as of a bad one: see '
                    'own_bad_rows of the loader. Packing leaves them out.',
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
        """The mixture and the order of the samples that are read; with packing, those of the documents."""
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

    @property
    def is_packed(self) -> bool:
        """Whether batches hold sequences packed from samples."""
        return False

    def promised_token_shares(self) -> npt.NDArray[np.float64]:
        """The share of each stream in the tokens of packed batches that the mixture promises, float64[streams].

        Raises:
            TypeError: batches are not packed, so their tokens are not counted.
        """
        raise TypeError('A StreamingDataset knows no tokens; a PackedDataset does.')

    def begin_batches(self, asked: PassRequest) -> Pass:
        """Begin a pass in batches, as `begin_pass` does."""
        plan = self.begin_pass(asked.batches, place=asked.place)
        if asked.collate_fn is None and plan.order.units > plan.topology.replicas:
            self.require_equal_columns(joined=True)
        epoch, start = plan.order.epoch, plan.start
        numbers = chain.from_iterable(takewhile(len, (plan.batches(first, AHEAD) for first in count(step=AHEAD))))
        keys = (BatchKey(epoch, start, number, asked.continues) for number in numbers)
        return Pass(plan, self.reader_of(plan, asked), keys)

    def reader_of(self, plan: BatchPlan, asked: PassRequest) -> BatchReader:
        """The reader of a pass; it gets the samples, the plan and the run, but not the dataset."""
        return BatchReader(
            self.sample_source(),
            plan,
            self.run,
            asked.collate_fn,
            mark_streams=asked.mark_streams,
            pad=self._padding_of(asked.pad),
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
        if self.run.asked.order.batch_cost is not None:
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
