"""MosaicML Streaming's orders as the functions that compute whole arrays; loaders work them out batch by batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.errors import UnknownNameError
from headrace.order.families import PERMUTATIONS
from headrace.order.mosaicml.epoch_permutation import choose_per_shard
from headrace.order.mosaicml.partition import Partition
from headrace.order.sample_map import SampleMap
from headrace.order.shuffle import divide_spans as spans_of

IntArray = npt.NDArray[np.int64]


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> IntArray:
    """The positions of an epoch that each worker reads.

    Args:
        algo: 'relaxed' or 'orig'.
        num_samples: samples of the epoch.
        num_canonical_nodes: parts of the data that are read side by side.
        num_physical_nodes: number of nodes.
        ranks_per_node: ranks of a node.
        workers_per_rank: dataloader workers of a rank, at least 1.
        batch_size: samples of a rank's batch.
        drop_first: samples that were trained before.
        initial_physical_nodes: nodes that the run began on, if known.

    Returns: int64[nodes, ranks per node, workers per rank, batches per worker, batch size], or -1 for no sample.

    Raises:
        ValueError: an unknown algorithm, or numbers that do not divide as they have to.
    """
    partition = Partition(
        num_samples,
        num_canonical_nodes,
        nodes=num_physical_nodes,
        ranks=ranks_per_node,
        batch_size=batch_size,
        drop=drop_first,
        algorithm=algo,
        initial_nodes=initial_physical_nodes,
    )
    rows = partition.rows(np.arange(partition.num_rows))
    return work_array(rows, num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)


def work_array(rows: IntArray, nodes: int, ranks: int, workers: int, batch_size: int) -> IntArray:
    """Deal rows of global batches, int64[batches, nodes · ranks · batch size], to workers, which take them in turn.

    Returns as `get_partitions`; batches of -1 fill up the last turn.
    """
    padding = np.full((-len(rows) % workers, nodes * ranks * batch_size), -1, np.int64)
    padded = np.concatenate([rows.reshape(-1, nodes * ranks * batch_size), padding])
    shape = (len(padded) // workers, workers, nodes, ranks, batch_size)
    return padded.reshape(shape).transpose(2, 3, 1, 0, 4)


def get_shuffle(
    algo: str, shard_sizes: IntArray, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> IntArray:
    """The position in stored order of each sample of an epoch.

    Args:
        algo: 'py1e', 'py1br', 'py1b', 'py1s', 'py2s' or 'naive'.
        shard_sizes: int64[shards], samples of each shard.
        num_canonical_nodes: parts of the data that are read side by side.
        seed: of the run.
        epoch: 0, 1, …
        block_size: samples over which a canonical node's samples are spread, about.

    Returns:
        int64[samples], a permutation.

    Raises:
        ValueError: an unknown algorithm.
    """
    shuffle = PERMUTATIONS.get(algo)
    if shuffle is None:
        raise UnknownNameError(f'A shuffle algorithm is one of {list(PERMUTATIONS)}, but got {algo!r}. Correct it.')
    sizes = np.asarray(shard_sizes, np.int64)
    out = np.empty(int(sizes.sum()), np.int64)
    shuffle(out, sizes, num_canonical_nodes, seed, epoch, block_size)
    return out


def get_sampling(
    samples_per_shard: IntArray, choose: int, granularity: int, seed: int, epoch: int, use_epoch: bool
) -> IntArray:
    """Samples that an epoch draws from each shard of a stream.

    Args:
        samples_per_shard: int64[shards].
        choose: samples to draw from the stream.
        granularity: samples drawn together from a shard.
        seed: of the run.
        epoch: 0, 1, …
        use_epoch: whether epochs draw from other shards.

    Returns:
        int64[shards].

    Raises:
        ValueError: a negative number, or a granularity of 0.
    """
    return choose_per_shard(
        np.asarray(samples_per_shard, np.int64), choose, granularity, seed + epoch if use_epoch else seed
    )


def divide_spans(
    spans: list[tuple[int, int]], num_samples: int, num_parts: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Cut spans of samples into parts of equal numbers.

    Returns the spans, cut at the bounds of parts; and of each part the first and the end among them.
    """
    del num_samples
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    parts = spans_of(bounds[:, 0].copy(), bounds[:, 1] - bounds[:, 0], num_parts)
    pieces = zip(parts.begins.tolist(), (parts.begins + parts.lengths).tolist(), strict=True)
    return list(pieces), list(zip(parts.bounds[:-1].tolist(), parts.bounds[1:].tolist(), strict=True))


class Spanner:
    """Finds the shard of a sample: `Spanner(shard_sizes)[i]` is the shard, and the place in it.

    Args:
        shard_sizes: int64[shards], samples of each shard.
        span_size: has no effect.

    Raises:
        IndexError: the sample does not exist.
    """

    def __init__(self, shard_sizes: IntArray, span_size: int = 1 << 10) -> None:
        del span_size
        self.shard_sizes = np.asarray(shard_sizes, np.int64)
        self._map = SampleMap(self.shard_sizes)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._map.locate_one(int(index))
