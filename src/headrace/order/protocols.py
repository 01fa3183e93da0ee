"""An epoch's sequence, and a pass over it in batches: what others need to know of any kind of order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.order.arrays import IntArray
    from headrace.order.config import OrderConfig
    from headrace.order.explanation import BatchExplanation
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.sample_map import SampleMap
    from headrace.order.skip import Ranges, Skip
    from headrace.order.topology import BatchSpec, Remainder, Topology


class Order(Protocol):
    """The sequence of one epoch, a pure function of (mixture, config, epoch); it knows nothing of the topology.

    An order may keep what it computed for the next call, and is used by one thread at a time.
    """

    def __len__(self) -> int:
        """Return the number of positions, the epoch's size."""
        ...

    @property
    def mixture(self) -> Mixture:
        """The streams and what an epoch draws from each."""
        ...

    @property
    def epoch(self) -> int:
        """Which epoch it is the sequence of."""
        ...

    @property
    def first(self) -> int:
        """The first position that there is: 0, but where another mixture took over in the middle of the epoch."""
        ...

    @property
    def num_canonical_nodes(self) -> int:
        """Position p belongs to canonical node p modulo this."""
        ...

    @property
    def units(self) -> int:
        """Parts of a global batch that are of one stream each; 0: batches are mixed.

        Unit h of a batch has its positions that are h modulo this.
        """
        ...

    def at(self, positions: IntArray) -> IntArray:
        """Return global sample ids int64[n] at positions int64[n], each in [0, len), in any order, repeats allowed.

        Ids are numbered stream after stream, shard after shard, in stored order.

        Raises:
            IndexError: a position is out of range.
        """
        ...

    def stream_counts(self, begin: int, end: int) -> IntArray:
        """Return int64[streams], the samples of each stream at positions from begin on and below end.

        Raises:
            IndexError: a position is out of range.
        """
        ...

    def find(self, sample_id: int, start: int = 0) -> Iterator[int]:
        """Yield the positions of a global sample id from ``start`` on, in rising order: the inverse of `at`.

        Raises:
            IndexError: there is no such sample, or no such position.
        """
        ...

    def plan(
        self,
        topology: Topology,
        *,
        global_batch_size: int,
        start: int = 0,
        remainder: Remainder = 'repeat',
        initial_nodes: int | None = None,
        skip: Skip = (),
        epoch: int = 0,
    ) -> BatchPlan:
        """Return its global batches, as this family cuts them; see `headrace.order.make_plan`."""
        ...

    def check_dealt(self, then: Sequence[int], batches: BatchSpec, initial_nodes: int | None) -> None:
        """Check that batches of this epoch continue in its middle as a state's run had them.

        Args:
            then: `ResumeState.dealt`.
            batches: those of now.
            initial_nodes: nodes of the parallel world that the run began on.

        Raises:
            ResumeError: they do not.
        """
        ...


class BatchPlan(Protocol):
    """One pass over an epoch: its global batches from a position on, numbered from 0, and which rows are a rank's.

    It never changes. A `Run` makes it; the loader, the readers and the prefetch are given it.
    """

    @property
    def order(self) -> Order:
        """The sequence that positions are of."""
        ...

    @property
    def topology(self) -> Topology:
        """For which rank of how many."""
        ...

    @property
    def global_batch_size(self) -> int:
        """Samples in a batch of all replicas together."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of one replica."""
        ...

    @property
    def remainder(self) -> Remainder:
        """The fate of the samples after the last full batch."""
        ...

    @property
    def skip(self) -> Ranges:
        """The positions of the epoch that no batch holds."""
        ...

    @property
    def start(self) -> int:
        """The position at which batch 0 begins."""
        ...

    @property
    def num_batches(self) -> int:
        """Batches to the end of the epoch."""
        ...

    @property
    def total_batches(self) -> int:
        """Batches of a whole epoch."""
        ...

    @property
    def epoch_batches(self) -> int:
        """Batches of a whole epoch, skipped ones included."""
        ...

    @property
    def epoch_rows(self) -> int:
        """Batches of a whole epoch, skipped ones included, the same on all ranks."""
        ...

    @property
    def batches_before(self) -> int:
        """Whole batches that the samples before the position make."""
        ...

    @property
    def is_skipped(self) -> bool:
        """Whether no batch is left of the epoch, but would be if ``skip`` left nothing out."""
        ...

    @property
    def stop(self) -> int:
        """The state of a checkpoint after the last batch."""
        ...

    @property
    def epoch_samples(self) -> int:
        """Samples that a whole epoch delivers on all ranks."""
        ...

    def end(self, k: int) -> int:
        """Return what a checkpoint says after batch k."""
        ...

    def skipped(self, k: int) -> int:
        """Return how much further than by its samples batch k moves the position: over skipped samples."""
        ...

    def of_rank(self, rank: int) -> BatchPlan:
        """Return the same batches, as another rank sees them."""
        ...

    def explain(self, k: int, sample_map: SampleMap | None = None) -> BatchExplanation:
        """Return which samples of which shards make up batch k, on all ranks; see `explain_batch`."""
        ...

    def find(self, sample_id: int, first: int = 0) -> tuple[int, int] | None:
        """Return the first batch from ``first`` on that holds a sample, and its position there; None: no batch does."""
        ...

    def positions(self, k: int) -> IntArray:
        """Return this replica's positions of batch k, int64[rows]; only the last batch may have fewer rows."""
        ...

    def positions_of(self, batches: range) -> IntArray:
        """Return this replica's positions of consecutive batches, one after another; int64[rows]."""
        ...

    def global_positions(self, k: int) -> IntArray:
        """Return all positions of batch k, int64[rows], padding included."""
        ...

    def node_positions(self, k: int) -> IntArray:
        """Return the positions of batch k of all replicas of this node, int64[rows], padding included."""
        ...

    def spans(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of positions of batches from ``first`` on and below ``last``, no padding."""
        ...

    def stream_counts(self, first: int, last: int) -> IntArray:
        """Return int64[streams], each stream's samples in those batches, on all replicas together."""
        ...

    def own_samples(self, k: int) -> int:
        """Return the number of those rows that are no padding; padding comes last."""
        ...

    def ids(self, k: int) -> IntArray:
        """Return this replica's sample ids of batch k, int64[rows]."""
        ...

    def ids_of(self, batches: range) -> IntArray:
        """Return this replica's sample ids of consecutive batches, one after another; int64[rows]."""
        ...


class LoadPermutation(Protocol):
    """Gives the array that `fill_permutation` fills, from wherever it is kept."""

    def __call__(self, mixture: Mixture, config: OrderConfig, epoch: int, /) -> IntArray:
        """Return int64[epoch size], the sample ids of an epoch's positions."""
        ...
