"""The native order with 10 to 2,000 streams: processor time and memory of the first batches and of an explained one.

usage: python benchmarks/many_streams.py [--streams 10,100,1000,2000] [--nodes 1,8,64] [--samples 4000] [--read BATCHES]

Streams have 250 shards each, of SAMPLES samples. "first" is the processor time until the first batch's ids are known,
"ten" until those of ten batches are, "explain" that of one batch in the epoch's first third, in seconds. Memory is the
peak of all this in MiB, measured in a second run. Batches have 512 samples, or 2,048 with stratified batching.

With ``--read``, data are read instead, from streams of 50 shards of 10 samples, with an empty cache of a remote folder.
The seconds are those to open them, to the first batch of 64 samples, and of BATCHES more, each with about 64 new
shards.

The source may be another checkout's, by ``PYTHONPATH``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import tracemalloc

import numpy as np

from headrace.order import Mixture, OrderConfig, StreamSize, Topology, make_order, make_plan


def measure(streams: int, samples: int, nodes: int, batching: str) -> tuple[float, float, float]:
    """Processor seconds of the first batch, of ten batches, and of explaining one."""
    size = 2048 if batching == 'stratified' else 512
    mixture = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=np.full(250, samples)) for i in range(streams)])
    config = OrderConfig(
        shuffle=True,
        num_canonical_nodes=nodes,
        batching=batching,
        global_batch_size=size if batching == 'stratified' else None,
    )
    begin = time.process_time()
    plan = make_plan(make_order(mixture, config, 0), Topology(), global_batch_size=size)
    plan.ids(0)
    first = time.process_time()
    for number in range(1, 10):
        plan.ids(number)
    ten = time.process_time()
    plan.explain(plan.num_batches // 3)
    return first - begin, ten - begin, time.process_time() - ten


def read(streams: int, batches: int) -> tuple[float, float, float]:
    """Seconds to open, to the first batch, and for some more, where each touches shards that are not cached."""
    from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # fetches may still run
        with MDSWriter(out=f'{folder}/0', columns={'id': 'int64'}, size_limit=290) as writer:
            for number in range(500):
                writer.write({'id': number})
        for number in range(1, streams):
            shutil.copytree(f'{folder}/0', f'{folder}/{number}')
        begin = time.perf_counter()
        parts = [Stream(remote=f'{folder}/{number}', local=f'{folder}/cache/{number}') for number in range(streams)]
        dataset = StreamingDataset(streams=parts, shuffle=True, batch_size=64)
        opened = time.perf_counter()
        iterator = iter(StreamingDataLoader(dataset))
        next(iterator)
        first = time.perf_counter()
        for _ in range(batches):
            next(iterator)
        return opened - begin, first - opened, time.perf_counter() - first


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--streams', default='10,100,1000,2000')
    parser.add_argument('--nodes', default='1,8,64')
    parser.add_argument('--samples', type=int, default=4000)
    parser.add_argument('--read', type=int)
    options = parser.parse_args()
    if options.read:
        print(f'| streams | open | first | {options.read} batches |\n|---|---|---|---|')
        for streams in map(int, options.streams.split(',')):
            cells = ' | '.join(f'{seconds:.2f}' for seconds in read(streams, options.read))
            print(f'| {streams:,} | {cells} |', flush=True)
        return
    print('| streams | canonical nodes | batching | first | ten | explain | MiB |\n|---|---|---|---|---|---|---|')
    for streams in map(int, options.streams.split(',')):
        for nodes in map(int, options.nodes.split(',')):
            for batching in ('random', 'stratified'):
                times = measure(streams, options.samples, nodes, batching)
                tracemalloc.start()
                measure(streams, options.samples, nodes, batching)
                peak = tracemalloc.get_traced_memory()[1] >> 20
                tracemalloc.stop()
                cells = ' | '.join(f'{seconds:.2f}' for seconds in times)
                print(f'| {streams:,} | {nodes} | {batching} | {cells} | {peak} |', flush=True)


if __name__ == '__main__':
    main()
