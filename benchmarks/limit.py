"""Ranks of a node that share a cache with a limit: how often a shard is fetched in one epoch.

    python benchmarks/limit.py [--samples 96000] [--ranks 1,2,4] [--workers 0,2] [--limits 0.13,0.2,0.5] [--pace 0.004]

The data are shards of 256 KiB in a folder, in the native order with 4 canonical nodes and windows of 1,000 samples, so
that some 20 shards are read in turn. Each rank is a process with a loader of its own; they meet after every batch, as
trainers do, and then wait for `pace` seconds. The limit is a part of the data. A shard that is fetched once is 1.00 x.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology

BATCH, LENGTH, SHARD = 32, 512, 1 << 18
FORK = multiprocessing.get_context('fork')


def write(folder: Path, samples: int) -> list[int]:
    """The data set; returns the shards' bytes."""
    columns = {'tokens': f'ndarray:uint16:{LENGTH}', 'id': 'int'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=SHARD) as writer:
        for number in range(samples):
            writer.write({'tokens': np.full(LENGTH, number % 60_000, np.uint16), 'id': number})
    return [path.stat().st_size for path in folder.glob('*.mds')]


def run_rank(number: int, options: dict[str, Any], together: Any, results: Any) -> None:
    """One epoch of one rank; puts its ids, the shards that it fetched, and seconds."""
    dataset = StreamingDataset(
        remote=options['remote'],
        local=options['local'],
        batch_size=BATCH,
        shuffle=True,
        shuffle_block_size=1000,
        num_canonical_nodes=4,
        cache_limit=options['limit'],
        topology=Topology(rank=number, world_size=options['ranks']),
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=options['workers'])
    begin, ids = time.monotonic(), list[int]()
    for batch in loader:
        ids += batch['id'].tolist()
        together.wait()
        time.sleep(options['pace'])
    results.put((ids, loader.stats().shards_fetched, time.monotonic() - begin))


def measure(ranks: int, **options: Any) -> tuple[set[int], int, float]:
    """One epoch on so many ranks: which samples they had, shards fetched by all, and seconds."""
    together, results = FORK.Barrier(ranks), FORK.Queue()
    with tempfile.TemporaryDirectory() as local:
        given = {**options, 'ranks': ranks, 'local': local}
        processes = [FORK.Process(target=run_rank, args=(number, given, together, results)) for number in range(ranks)]
        for process in processes:
            process.start()
        found = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    return (
        {sample for ids, _, _ in found for sample in ids},
        sum(fetched for _, fetched, _ in found),
        max(seconds for _, _, seconds in found),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0] if __doc__ else None)
    parser.add_argument('--samples', type=int, default=96_000)
    parser.add_argument('--ranks', default='1,2,4')
    parser.add_argument('--workers', default='0,2')
    parser.add_argument('--limits', default='0.13,0.2,0.5')
    parser.add_argument('--pace', type=float, default=0.004, help='seconds that a step takes beside reading')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as remote:
        sizes = write(Path(remote), arguments.samples)
        index = (Path(remote) / 'index.json').stat().st_size
        print(f'{len(sizes)} shards, {sum(sizes) / 1e6:,.0f} MB\n')
        print(
            '| ranks | workers each | limit, of the data | shards fetched | seconds |\n| --- | --- | --- | --- | --- |'
        )
        for ranks in map(int, arguments.ranks.split(',')):
            for workers in map(int, arguments.workers.split(',')):
                for part in map(float, arguments.limits.split(',')):
                    limit = int(part * sum(sizes)) + index
                    samples, fetched, seconds = measure(
                        ranks, workers=workers, limit=limit, remote=remote, pace=arguments.pace
                    )
                    assert samples == set(range(arguments.samples))
                    print(
                        f'| {ranks} | {workers} | {part:g} | {fetched / len(sizes):.2f} x | {seconds:.1f} |', flush=True
                    )


if __name__ == '__main__':
    main()
