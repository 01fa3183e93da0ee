"""An epoch's sequence, and a pass over it in batches: what others need to know of any kind of order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headrace.order.topology import BatchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.order.arrays import IntArray
    from headrace.order.config import OrderConfig
    from headrace.order.explanation import BatchExplanation
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.sample_map import SampleMap
    from headrace.order.skip import Ranges, Skip
    from headrace.order.topology import Remainder, Topology, Uneven

LoadPermutation: TypeAlias = 'Callable[[Mixture, OrderConfig, int], IntArray]'
"""Gives the sample ids int64[epoch size] that `fill_permutation` computes for an epoch, from wherever they are kept."""


class Order(ABC):
    """The sequence of one epoch, a pure function of (mixture, config, epoch); it knows nothing of the topology.

    An order may keep what it computed for the next call, and is used by one thread at a time.
    """

    mixture: Mixture  # The streams and what an epoch draws from each.
    epoch: int  # Which epoch it is the sequence of.
    first: int = 0
    """The first position that there is: 0, but where another mixture took over in the middle of the epoch."""
    num_canonical_nodes: int  # Position p belongs to canonical node p modulo this.
    units: int = 0
    """Parts of a global batch that are of one stream each: unit h has its positions that are h modulo this. 0: batches
    are mixed."""

    @property
    def mixtures(self) -> Sequence[tuple[int, Mixture]]:
        """The mixtures of the epoch, each with the position from which on it holds."""
        return [(self.first, self.mixture)]

    def __len__(self) -> int:
        return self.mixture.epoch_size

    @abstractmethod
    def at(self, positions: IntArray) -> IntArray:
        """Return global sample ids int64[n] at positions int64[n], each in [first, len), in any order, repeats allowed.

        Ids are numbered stream after stream, shard after shard, in stored order.

        Raises:
            IndexError: a position is out of range.
        """

    @abstractmethod
    def stream_counts(self, begin: int, end: int) -> IntArray:
        """Return int64[streams], the samples of each stream at positions from begin on and below end.

        Raises:
            IndexError: a position is out of range.
        """

    def find(self, sample_id: int, start: int = 0) -> Iterator[int]:
        """Yield the positions of a global sample id from ``start`` on, in rising order: the inverse of `at`.

        Raises:
            IndexError: the sample or the position does not exist.
        """
        if not 0 <= sample_id < self.mixture.num_samples:
            raise IndexError(f'sample ids must be in [0, {self.mixture.num_samples}), got {sample_id}.')
        if not 0 <= start <= len(self):
            raise IndexError(f'positions must be in [0, {len(self)}], got {start}.')
        return self._find(int(self.mixture.sample_offsets.searchsorted(sample_id, 'right')) - 1, sample_id, start)

    @abstractmethod
    def _find(self, stream: int, sample_id: int, start: int) -> Iterator[int]:
        """As `find`, of a sample of a stream."""

    @abstractmethod
    def plan(
        self, batches: BatchSpec, start: int = 0, *, epoch: int = 0, skip: Skip = (), initial_nodes: int | None = None
    ) -> BatchPlan:
        """Return its global batches, as this family cuts them; see `headrace.order.make_plan`."""


class BatchPlan(ABC):
    """One pass over an epoch: its global batches from a position on, numbered from 0, and which rows are a rank's.

    It never changes. A `Run` makes it for the loader and its readers, and an equal one in each worker.
    """

    __slots__ = ()

    order: Order  # The sequence that positions are of.
    topology: Topology  # For which rank of how many.
    global_batch_size: int  # Samples in a batch of all replicas together.
    remainder: Remainder  # The fate of the samples after the last full batch.
    uneven: Uneven | None  # How replicas share a batch that they do not divide; None if they divide it.
    skip: Ranges  # The positions of the epoch that no batch holds.
    start: int  # The position at which batch 0 begins.

    @property
    def spec(self) -> BatchSpec:
        """How the sequence is cut, and for which rank."""
        return BatchSpec(self.global_batch_size, self.topology, self.remainder, self.uneven)

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of one replica, at most."""
        return self.spec.batch_size

    @property
    def has_padding(self) -> bool:
        """Whether a batch may have padding that is marked."""
        return self.remainder == 'exact' or self.uneven is not None

    @property
    @abstractmethod
    def num_batches(self) -> int:
        """This rank's batches from ``start`` to the end of the epoch."""

    def batches(self, first: int, most: int) -> range:
        """Return the batches from one on, at most ``most``. It may be much faster than `num_batches`."""
        return range(first, self.num_batches)[:most]

    def batches_of(self, samples: int) -> int:
        """Return the number of batches that these samples make, counting a partial last one."""
        return min(-(-samples // self.global_batch_size), self.num_batches)

    @property
    @abstractmethod
    def total_batches(self) -> int:
        """This rank's batches of a whole epoch, from position 0."""

    @property
    @abstractmethod
    def epoch_batches(self) -> int:
        """This rank's batches of a whole epoch, skipped ones included."""

    @property
    def epoch_rows(self) -> int:
        """Batches of a whole epoch of any rank, skipped ones included: the same on all ranks."""
        return self.epoch_batches

    @property
    @abstractmethod
    def batches_before(self) -> int:
        """Whole batches that the samples before the position make."""

    @property
    def epochs_differ(self) -> bool:
        """Whether epochs have different numbers of batches, even without ``skip``."""
        return False

    @property
    def is_skipped(self) -> bool:
        """Whether no batch is left of the epoch, but would be if ``skip`` left nothing out."""
        return bool(self.skip) and not self.total_batches

    @property
    @abstractmethod
    def stop(self) -> int:
        """The position after the last batch, which a checkpoint says."""

    @property
    @abstractmethod
    def epoch_samples(self) -> int:
        """Samples that a whole epoch, from position 0, delivers on all ranks. Padding does not count."""

    @abstractmethod
    def end(self, k: int) -> int:
        """Return the position after batch k, and after a skipped range that follows directly: a checkpoint says it."""

    @abstractmethod
    def skipped(self, k: int) -> int:
        """Return how much further than by its samples batch k moves the position: over skipped samples."""

    @abstractmethod
    def of_rank(self, rank: int) -> BatchPlan:
        """Return the same batches, as another rank sees them."""

    def explain(self, k: int, sample_map: SampleMap | None = None) -> BatchExplanation:
        """Return which samples of which shards make up batch k, on all ranks.

        Args:
            k: in [0, num_batches).
            sample_map: where the samples of ids are; if not given, each stream offers all of its shards' rows.

        Raises:
            IndexError: the batch does not exist, or is from before the mixture took over.
        """
        # A training run explains nothing.
        from headrace.order.explanation import BatchExplanation
        from headrace.order.sample_map import SampleMap

        mixture = self.order.mixture
        ranks, rows, positions, is_padding = self.rows_of_ranks(k)
        ids = self.order.at(positions)
        shards, shard_rows = (sample_map or SampleMap.of(mixture)).locate(ids)
        streams = mixture.shard_offsets.searchsorted(shards, 'right') - 1
        return BatchExplanation(
            epoch=self.order.epoch,
            number=k,
            end=self.end(k),
            stream_names=tuple(stream.name for stream in mixture.streams),
            topology=self.topology,
            ranks=ranks,
            rows=rows,
            positions=positions,
            ids=ids,
            streams=streams,
            shards=shards - mixture.shard_offsets[streams],
            shard_rows=shard_rows,
            is_padding=is_padding,
        )

    def rows_of_ranks(self, k: int) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]:
        """Return ranks, rows and positions of batch k on all replicas, int64[rows], and `is_padding`, bool[rows]."""
        ranks = range(0, self.topology.world_size, self.topology.replication)
        plans = [self.of_rank(rank) for rank in ranks]
        positions = [plan.positions(k) for plan in plans]
        rows = [np.arange(len(of_rank)) for of_rank in positions]
        return (
            np.repeat(np.array(ranks), [len(of_rank) for of_rank in positions]),
            np.concatenate(rows),
            np.concatenate(positions),
            np.concatenate([row >= plan.own_samples(k) for row, plan in zip(rows, plans, strict=True)]),
        )

    @abstractmethod
    def find(self, sample_id: int, first: int = 0) -> tuple[int, int] | None:
        """Return the first batch from ``first`` on that holds a sample, and its position there, or None.

        Padding does not count, nor dropped or skipped samples.

        Raises:
            IndexError: the sample does not exist.
        """

    @abstractmethod
    def positions(self, k: int) -> IntArray:
        """Return this replica's positions of batch k, int64[rows], padding included."""

    @abstractmethod
    def positions_of(self, batches: range) -> IntArray:
        """Return this replica's positions of consecutive batches, one after another; int64[rows].

        All of them together take little longer than one.
        """

    def rows_of(self, batches: range) -> IntArray:
        """Return the rows that `positions_of` has of each batch, int64[batches]; the epoch's last may have fewer."""
        return np.full(len(batches), self.batch_size)

    @abstractmethod
    def global_positions(self, k: int) -> IntArray:
        """Return all positions of batch k, int64[rows], padding included."""

    @abstractmethod
    def node_positions(self, k: int) -> IntArray:
        """Return the positions of batch k of all replicas of this node, int64[rows], padding included."""

    @abstractmethod
    def spans(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of positions of batches from ``first`` on and below ``last``, no padding."""

    @abstractmethod
    def stream_counts(self, first: int, last: int) -> IntArray:
        """Return int64[streams], each stream's samples in those batches, on all replicas together; no padding."""

    @abstractmethod
    def own_samples(self, k: int) -> int:
        """Return the number of this replica's rows of batch k that are not padding; padding comes last."""

    def ids(self, k: int) -> IntArray:
        """Return this replica's sample ids of batch k, int64[rows]."""
        return self.order.at(self.positions(k))

    def ids_of(self, batches: range) -> IntArray:
        """Return this replica's sample ids of consecutive batches, one after another; int64[rows]."""
        return self.order.at(self.positions_of(batches))
