"""A pass in batches: the loader's request, the dataset's answer, and the reader of its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from torch.utils.data import Dataset

from headrace.dataset.sample_rng import drawing_for
from headrace.dataset.statistics import WorkerBatch

if TYPE_CHECKING:
    from headrace.dataset.progress import Progress
    from headrace.dataset.reading.sample_pool import SamplePool
    from headrace.dataset.reading.skipping_reader import SkippingReader
    from headrace.order import BatchPlan, BatchSpec
    from headrace.storage import CacheCounters

__all__ = ['Collate', 'Pass', 'PassRequest', 'Reader', 'SampleSource']

Collate = Callable[[list[Any]], Any]
Key = TypeVar('Key')


class SamplesByNumber(Protocol):
    """Samples by id."""

    def __getitem__(self, sample_id: int, /) -> Any:
        """Read one."""
        ...


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """What readers get of a dataset. It goes to workers."""

    pool: SamplePool
    """The samples by id, as they are stored."""
    samples: SamplesByNumber
    """The dataset, if a user's code reads samples; else the pool."""
    is_columnar: bool
    """Whether no user's code reads samples, so that batches can be read column by column."""
    skipping_reader: SkippingReader | None
    """Replaces bad samples; None: they raise."""
    shuffle_seed: int
    """Key of the order."""
    predownload: int | None
    """Samples to look ahead; None: the default."""
    progress: Progress
    """Has the time that the trainer has waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest:
    """A pass in batches that a loader asks for."""

    batches: BatchSpec
    """How the sequence is cut, with all defaults filled in."""
    place: tuple[int, int]
    """Epoch and first sample."""
    collate_fn: Collate | None
    """A user's; None: columns, or `default_collate`."""
    mark_streams: bool
    """Whether batches hold the streams of their rows."""
    continues: bool
    """Whether the processes that read it read the next epoch, too."""


class Pass(NamedTuple):
    """A pass over a dataset, in the process that iterates."""

    plan: BatchPlan
    """Its batches, their size and remainder, and the topology."""
    reader: Reader[Any]
    """Reads the data of the keys."""
    keys: Iterator[Any]
    """In order."""
    pack: Callable[[Iterator[WorkerBatch]], Iterator[WorkerBatch]] | None = None
    """Packs what was read into batches; None: it is batches already."""


class Reader(Dataset[WorkerBatch], ABC, Generic[Key]):
    """Reads the data of keys, for one rank, in the main process or as a copy in workers.

    A copy that lives on reads the keys of later passes, too.

    Args:
        source: the samples.
        collate_fn: a user's; None: columns, or `default_collate`.
    """

    def __init__(self, source: SampleSource, collate_fn: Collate | None = None) -> None:
        self._source = source
        self._collate_fn = collate_fn
        self._is_columnar = collate_fn is None and source.is_columnar
        self._skipping_reader = source.skipping_reader

    @abstractmethod
    def __getitem__(self, key: Key) -> WorkerBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read the data of a key, in this process."""

    @property
    def sent_to_workers(self) -> dict[str, Any]:
        """The objects of users that workers get, by their names."""
        return {'collate_fn': self._collate_fn, 'dataset': self._source.samples}

    @property
    def counters(self) -> CacheCounters:
        """Counters of the data that this process has read, for each stream."""
        return self._source.pool.counters

    def _sample(self, epoch: int, sample_id: int) -> Any:
        with drawing_for(self._source.shuffle_seed, epoch, sample_id):
            return self._source.samples[sample_id]
