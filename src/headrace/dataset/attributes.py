"""Samples of a dataset by their ids, and the attributes that programs for MosaicML Streaming read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import attrgetter, index
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from headrace.dataset.reading.sample_pool import SamplePool
from headrace.dataset.sequence import SampleSequence
from headrace.dataset.streams.stream import Stream
from headrace.errors import ConfigError
from headrace.format import ShardInfo, number_abbrev_to_int
from headrace.order import BatchExplanation, BatchPlan
from headrace.order.mosaicml.epoch_arrays import Spanner
from headrace.order.mosaicml.epoch_permutation import Draws
from headrace.storage import CacheCounters


class SamplesById:
    """Samples by id, and `dataset[...]` in terms of `get_item`, which subclasses may override."""

    _sample_pool: SamplePool

    @property
    def num_samples(self) -> int:
        """Samples that all streams offer, in an epoch or not."""
        return len(self.pool)

    @property
    def size(self) -> int:
        """Samples that all streams offer; the number of ids that `dataset[i]` takes."""
        return self.num_samples

    @property
    def pool(self) -> SamplePool:
        """The samples that all streams offer, by id, as they are stored."""
        return self._sample_pool

    @property
    def cache_counters(self) -> CacheCounters:
        """This process' reads of each stream's store and cache, indexes included."""
        return self.pool.counters

    def place(self, shard: int) -> tuple[str, int, str]:
        """The name of a shard's stream, the shard's number in its index, and its file's name, unpacked."""
        return self.pool.place(shard)

    def locate(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards of sample ids, and the samples' places in them. Both int64, of the shape of `ids`."""
        return self.pool.locate(ids)

    def explain(self, plan: BatchPlan, k: int, *, reads_data: bool = True) -> BatchExplanation:  # noqa: ARG002
        """The samples and shards of batch k of a plan, on all ranks; reads no data.

        Args:
            plan: the plan.
            k: the batch's number there.
            reads_data: whether a subclass may read data that its batches depend on.

        Raises:
            IndexError: the batch does not exist.
        """
        return self.pool.explain(plan, k)

    @property
    def is_columnar(self) -> bool:
        """Whether samples are unchanged values of shards, so that many can be read column by column."""
        return False

    @abstractmethod
    def get_item(self, sample_id: int) -> Any:
        """One sample, by an id from 0 to `size` - 1."""

    def __getitem__(self, at: int | slice | Sequence[int] | npt.NDArray[np.integer[Any]]) -> Any:
        """One sample by its global id, or a list of samples. Negative ids count from the end. Lists may hold lists.

        Arrays and tensors without axes are single ids.

        Arrays of a list may share memory: a kept one holds that of some hundred others. Copy it to keep it alone.

        Raises:
            IndexError: the sample does not exist.
            TypeError: it is something else, or a mask of true and false.
        """
        ids: Any
        ids, size = _plain(at), self.size
        if isinstance(ids, int) and not isinstance(ids, bool):
            if not -size <= ids < size:
                raise IndexError(f'A sample id must be at least {-size} and below {size}, but is {ids}.')
            return self.get_item(ids % size)
        if isinstance(ids, (str, bytes, bool)) or not isinstance(ids, (slice, Iterable)):
            fix = ' Turn a mask into ids with `np.flatnonzero(mask)`.' if isinstance(ids, bool) else ''
            raise TypeError(
                f'A sample id is an int, a slice, or a list or array of ints, but is {ids!r:.60} '
                f'({type(ids).__name__}).{fix}'
            )
        wanted = range(*ids.indices(size)) if isinstance(ids, slice) else [_plain(item) for item in ids]
        if self.is_columnar and {*map(type, wanted)} == {int} and min(wanted) >= 0 and max(wanted) < size:
            return self.pool.samples(wanted)
        return [self[i] for i in wanted]


def _plain(at: Any) -> Any:
    """An int or nested lists of them in place of an array, a tensor, or a scalar of a library; others as they are."""
    if isinstance(at, (int, slice)):
        return at
    if callable(tolist := getattr(at, 'tolist', None)):
        return tolist()
    return index(at) if hasattr(at, '__index__') else at


IntArray = npt.NDArray[np.int64]
T = TypeVar('T')

_FIXED = ('epoch_size', 'num_canonical_nodes', 'shuffle_seed')


class _Attribute(Generic[T]):
    """A property that a subclass may hide by an attribute of its own, as it does when it stores its arguments."""

    def __init__(self, read: Callable[[Any], T], doc: str | None = None) -> None:
        self._read, self.__doc__ = read, doc or read.__doc__

    @overload
    def __get__(self, dataset: None, owner: type) -> _Attribute[T]: ...
    @overload
    def __get__(self, dataset: object, owner: type) -> T: ...
    def __get__(self, dataset: object | None, owner: type) -> _Attribute[T] | T:
        return self if dataset is None else self._read(dataset)


class DatasetAttributes(SamplesById, SampleSequence):
    """Attributes in terms of the mixture and the order's settings. Sizes count the samples that are offered."""

    streams: list[Stream]
    shards: Sequence[ShardInfo]

    def __setattr__(self, name: str, value: Any) -> None:
        # Subclasses store their arguments. Of these, the order has its own values, which it needs.
        if name not in _FIXED:
            super().__setattr__(name, value)
        elif value is not None and 'run' in vars(self):
            given = number_abbrev_to_int(value) if name == 'epoch_size' else value
            if given != getattr(self, name):
                raise ConfigError(
                    f'`{name}` is fixed when the dataset is made: it is {getattr(self, name)}, and was set to {value}. '
                    f'Pass it as an argument.'
                )

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass. Set it to begin there, at the epoch's first sample."""
        return self.next_place[0]

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        if epoch < 0:
            raise ConfigError(f'`next_epoch` must be at least 0, but is {epoch}.')
        self.progress.load(epoch, 0)

    @property
    def num_shards(self) -> int:
        """Shards in all streams."""
        return len(self.shards)

    def forget_sizes(self) -> None:
        """Have sizes that follow from the mixture computed again."""
        for name, value in vars(DatasetAttributes).items():
            if isinstance(value, cached_property):
                vars(self).pop(name, None)

    num_streams = _Attribute[int](lambda dataset: len(dataset.streams), 'Number of streams.')
    length = _Attribute[int](len, 'Samples of an epoch that one rank gets, as `len(dataset)`.')
    samples_per_shard = _Attribute[IntArray](
        attrgetter('mixture.shard_sizes'), 'Samples of each shard, int64[shards]; shards of stream 0 first.'
    )

    @cached_property
    def sample_offset_per_shard(self) -> IntArray:
        """Id of each shard's first sample, int64[shards]."""
        return np.cumsum(self.samples_per_shard) - self.samples_per_shard

    @cached_property
    def shards_per_stream(self) -> IntArray:
        """Shards of each stream, int64[streams]."""
        return np.diff(self.mixture.shard_offsets)

    @_Attribute
    def shard_offset_per_stream(self) -> IntArray:
        """Number of each stream's first shard, int64[streams]."""
        return self.mixture.shard_offsets[:-1]

    @cached_property
    def samples_per_stream(self) -> IntArray:
        """Samples of each stream, int64[streams]."""
        return np.array([stream.size for stream in self.mixture.streams], np.int64)

    @cached_property
    def sample_offset_per_stream(self) -> IntArray:
        """Id of each stream's first sample, int64[streams]."""
        return np.cumsum(self.samples_per_stream) - self.samples_per_stream

    @cached_property
    def stream_per_shard(self) -> IntArray:
        """Number of each shard's stream, int64[shards]."""
        return np.repeat(np.arange(self.num_streams), self.shards_per_stream)

    @cached_property
    def spanner(self) -> Spanner:
        """`spanner[i]` is the shard of sample id i, and the sample's place among the shard's offered samples."""
        return Spanner(self.samples_per_shard)

    @_Attribute
    def cache_usage(self) -> int:
        """Bytes of the shards that are present, unpacked."""
        sizes = [sum(file.raw.bytes for file in shard.files) for shard in self.shards]
        return sum(size for number, size in enumerate(sizes) if self.pool.shards.cached.is_present(number))

    def prepare_shard(self, shard: int, blocking: bool = True) -> None:  # noqa: ARG002 - as MosaicML Streaming's
        """Have a shard fetched and unpacked now. It returns when the shard is there; `blocking` has no effect."""
        self.pool.shards.fetch(shard)

    def evict_shard(self, shard: int) -> None:
        """Remove a shard from the cache. One without a remote stays."""
        self.pool.shards.evict(shard)

    # -- settings of the order -------------------------------------------------------------------------------------

    shuffle = _Attribute[bool](attrgetter('order_config.shuffle'), 'Whether samples are shuffled.')
    shuffle_algo = _Attribute[str | None](attrgetter('order_config.algorithm'), 'Name of the shuffle algorithm.')
    shuffle_block_size = _Attribute[int | None](
        attrgetter('order_config.block_size'), 'Samples over which the shuffle spreads a shard, per canonical node.'
    )
    batching_method = _Attribute[str](attrgetter('order_config.batching'), 'How streams share a batch.')
    partition_algo = _Attribute[str](
        attrgetter('order_config.partition'), "How MosaicML's orders split samples over nodes."
    )
    sampling_method = _Attribute[str](attrgetter('order_config.sampling'), "'balanced' or 'fixed'.")
    sampling_granularity = _Attribute[int](
        attrgetter('order_config.sampling_granularity'), 'Samples drawn together from a shard.'
    )
    initial_physical_nodes = _Attribute[int](attrgetter('initial_nodes'), 'Nodes that the run began on.')

    def resample_streams(self, epoch: int, stream_id: int | None = None) -> tuple[IntArray, IntArray]:
        """The samples that an epoch of MosaicML Streaming's orders draws, before their shuffle.

        Args:
            epoch: which epoch.
            stream_id: number of a stream; None: all of them.

        Returns:
            Lengths of the units that the shuffle keeps together, int64[units], and the sample ids, int64[draws].

        Raises:
            ConfigError: the dataset has headrace's own order, which draws otherwise.
        """
        if self.order_config.family.permutation is None:
            raise ConfigError(
                "resample_streams is a step of MosaicML Streaming's orders, but this dataset has the order "
                f"{self.order_config.algorithm!r}. Pass shuffle_algo='py1e', or ask `dataset.plan(epoch=...)`."
            )
        draws = Draws.of(self.mixture, self.order_config, epoch, stream_id)
        units, ids = draws.units(), draws.ids()
        return units, draws.first_id + np.arange(int(units.sum())) if ids is None else ids
