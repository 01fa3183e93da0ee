"""The cost to begin an epoch, or to resume within it: the native order, a MosaicML order, mosaicml-streaming.

Each measurement is a fresh process that has imported what it needs: seconds until the first 1,024 positions' samples
are known, and memory above that of the process before, at its peak. Medians of interleaved rounds. Shards have 4,000
samples; 8 canonical nodes; py1e, batches of 8 on 8 nodes of 8 ranks with 8 workers for the MosaicML order and
mosaicml-streaming, whose `generate_work` is called as its dataset calls it.

usage: python benchmarks/order.py [ROUNDS] [LARGEST POWER OF TEN]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

SHARD = 4000
NODES = 8
FIRST = 1024
WHOLE = 8  # powers of ten up to which whole permutations are made
CONTENDERS = ('native', 'native, middle', 'native, 5 streams', 'native, stratified', 'py1e', 'mosaicml-streaming')


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_headrace(contender: str, samples: int) -> dict[str, float]:
    """Begin an epoch, or a middle of it, and then continue for a million positions."""
    from headrace.order import Mixture, OrderConfig, StreamSize, make_order

    streams = 5 if contender in ('native, 5 streams', 'native, stratified') else 1
    sizes = np.full(max(samples // SHARD // streams, 1), SHARD)
    before, start = peak(), time.perf_counter()
    mixture = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=sizes) for i in range(streams)])
    config = OrderConfig(
        shuffle=True,
        algorithm='py1e' if contender == 'py1e' else 'native',
        num_canonical_nodes=NODES,
        batching='stratified' if contender == 'native, stratified' else 'random',
        global_batch_size=FIRST if contender == 'native, stratified' else None,
    )
    order = make_order(mixture, config, 1)
    first = len(order) // 2 if contender == 'native, middle' else 0
    order.at(np.arange(first, first + FIRST))
    found = {'seconds': time.perf_counter() - start, 'memory': float(peak() - before)}
    if contender != 'py1e':
        count = min(10**6, len(order) - first)
        start = time.perf_counter()
        for i in range(first, first + count, 16 * FIRST):
            order.at(np.arange(i, min(i + 16 * FIRST, len(order))))
        found['ns_per_position'] = (time.perf_counter() - start) / count * 1e9
    return found


def run_mosaicml(samples: int) -> dict[str, float]:
    """Make the array of an epoch's samples for a whole cluster, as the first rank of a node does."""
    from streaming.base.batching import generate_work
    from streaming.base.dataset import StreamingDataset

    shards = max(samples // SHARD, 1)
    sizes = np.full(shards, SHARD)
    stream = SimpleNamespace(choose=samples)
    dataset: Any = SimpleNamespace(
        partition_algo='relaxed', epoch_size=samples, num_canonical_nodes=NODES, initial_physical_nodes=NODES,
        batch_size=8, shuffle=True, shuffle_algo='py1e', shuffle_seed=9176, shuffle_block_size=4_000_000 // NODES,
        sampling_method='balanced', sampling_granularity=1, epoch_seed_change=True, num_streams=1, streams=[stream],
        shard_offset_per_stream=np.zeros(1, np.int64), shards_per_stream=np.array([shards]),
        samples_per_shard=sizes, sample_offset_per_shard=np.cumsum(sizes) - sizes,
    )  # fmt: skip
    dataset.resample_streams = lambda *args: StreamingDataset.resample_streams(dataset, *args)
    world: Any = SimpleNamespace(num_nodes=NODES, ranks_per_node=8, workers_per_rank=8, num_ranks=64)
    before, start = peak(), time.perf_counter()
    generate_work('random', dataset, world, 1, 0)
    return {'seconds': time.perf_counter() - start, 'memory': float(peak() - before)}


def main(rounds: int, largest: int) -> None:
    """Print a table."""
    print(f'| samples | order | seconds | memory at its peak | ns a position (median of {rounds}) |')
    print('|---|---|---|---|---|')
    for power in range(6, largest + 1):
        contenders = [c for c in CONTENDERS if power <= WHOLE or c.startswith('native')]
        found: dict[str, list[dict[str, float]]] = {contender: [] for contender in contenders}
        for _ in range(rounds):
            for contender in contenders:
                command = [sys.executable, __file__, '--one', contender, str(10**power)]
                found[contender].append(json.loads(subprocess.check_output(command)))
        for contender, runs in found.items():
            seconds, memory, position = (
                statistics.median(run.get(key, np.nan) for run in runs)
                for key in ('seconds', 'memory', 'ns_per_position')
            )
            each = '' if np.isnan(position) else f'{position:.0f}'
            print(f'| 10^{power} | {contender} | {seconds:.3f} | {memory / 2**20:.0f} MiB | {each} |', flush=True)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--one']:
        name, size = sys.argv[2], int(sys.argv[3])
        print(json.dumps(run_mosaicml(size) if name == 'mosaicml-streaming' else run_headrace(name, size)))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, int(sys.argv[2]) if len(sys.argv) > 2 else 10)
