"""The cache of a node, filled before a run in the order in which the run needs it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.reading.dataset_shards import CachedShards
from headrace.order import BatchPlan

_CHUNK = 64  # batches whose shards are looked up together


@dataclass(frozen=True)
class WarmReport:
    shards: int  # Shards that the batches need on this node.
    fetched: int  # Shards that came; the others were there.
    bytes: int  # Bytes that the fetched shards take in the cache.
    is_full: bool  # Whether `cache_limit` has no room for more; then `shards` counts those that were looked at.

    def to_json(self) -> dict[str, int | bool]:
        return dataclasses.asdict(self)


def warm(
    dataset: StreamingDataset,
    plan: BatchPlan,
    *,
    batches: int | None = None,
    jobs: int = 8,
    progress: Callable[[int], None] = lambda _: None,
) -> WarmReport:
    """Fetch the shards of a node's batches into its cache, in the order of their first use.

    A shard that is there is not fetched again, so the same call continues after a kill. Under a limit no shard that is
    needed sooner is evicted, and the first one without room ends the call. `progress` is called with the number of
    shards that are there.
    """
    shards = CachedShards(dataset.pool.streams)
    first_use: dict[int, int] = {}
    fetched = size = done = 0
    is_full = False

    def next_use(shard: int) -> float:
        return first_use.get(shard, math.inf)

    def fetch(shard: int) -> tuple[int, bool, bool]:
        was_there = shards.is_present(shard)
        return shard, was_there, bool(was_there or shards.fetch(shard, next_use=next_use))

    with ThreadPoolExecutor(jobs) as pool:
        coming = _in_order_of_use(dataset, plan, plan.num_batches if batches is None else batches)
        running = set[Future[tuple[int, bool, bool]]]()
        try:
            while True:
                for shard in itertools.islice(() if is_full else coming, jobs - len(running)):
                    first_use[shard] = len(first_use)
                    running.add(pool.submit(fetch, shard))
                if not running:
                    return WarmReport(len(first_use), fetched, size, is_full)
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for shard, was_there, is_there in (future.result() for future in ended):
                    is_full = is_full or not is_there
                    fetched += is_there and not was_there
                    size += shards.size_of(shard) if is_there and not was_there else 0
                    done += is_there
                    progress(done)
        finally:
            for future in running:
                future.cancel()


def _in_order_of_use(dataset: StreamingDataset, plan: BatchPlan, count: int) -> Iterator[int]:
    """The shards of a node's first batches, each once; those that are read in place are left out."""
    sizes = [len(stream.shards) for stream in dataset.streams]
    is_known = np.repeat([stream.is_local for stream in dataset.streams], sizes)
    end = min(count, plan.num_batches)
    for begin in range(0, end, _CHUNK):
        if is_known.all():
            return
        positions = [plan.node_positions(number) for number in range(begin, min(begin + _CHUNK, end))]
        located, _ = dataset.locate(plan.order.at(np.concatenate(positions)))
        shards, firsts = np.unique(located, return_index=True)
        for shard in shards[np.argsort(firsts)].tolist():
            if not is_known[shard]:
                is_known[shard] = True
                yield shard
