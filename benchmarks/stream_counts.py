"""The cost of counts by stream in a batch: with 1, 8 and 1,000 streams, without workers and with one; in microseconds.

usage: python benchmarks/stream_counts.py [ROUNDS]

Batches of 64 rows of one number, mixed at random, from streams of one local shard each, so that a batch costs little
else. "batch" is the processor time of the process that iterates, for all that `next(loader)` does in its main thread;
"worker" that of the worker, with all its threads, for a batch. Two epochs are read before the clock runs. "stats" is
`loader.stats()`. Medians of rounds; the source may be another checkout's, by ``PYTHONPATH``.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

ROWS, BATCHES = 64, 1500


def worker_seconds() -> float:
    """Processor time that all workers have had."""
    total = 0
    for child in multiprocessing.active_children():
        total += sum(map(int, Path(f'/proc/{child.pid}/stat').read_text().rpartition(')')[2].split()[11:13]))
    return total / os.sysconf('SC_CLK_TCK')


def write(root: Path, count: int) -> list[Path]:
    for number in range(count):
        with MDSWriter(out=str(root / str(number)), columns={'x': 'ndarray:int32:8'}) as writer:
            for row in range(max(2000 // count, 16)):
                writer.write({'x': np.full(8, row, np.int32)})
    return [root / str(number) for number in range(count)]


def measure(folders: list[Path], workers: int, limit: bool, cache: Path) -> tuple[float, float, float]:
    """Microseconds of a batch here, of a batch in the worker, and of `stats`."""
    streams = [
        Stream(remote=str(folder), local=str(cache / folder.name)) if limit else Stream(local=str(folder))
        for folder in folders
    ]
    dataset = StreamingDataset(
        streams=streams,
        shuffle=True,
        epoch_size=ROWS * BATCHES,
        batch_size=ROWS,
        num_canonical_nodes=1,
        cache_limit=1 << 40 if limit else None,
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
    for _ in loader:
        pass
    before, begin = worker_seconds(), time.thread_time()
    for _ in loader:
        pass
    here, there = time.thread_time() - begin, worker_seconds() - before
    begin = time.thread_time()
    for _ in range(100):
        loader.stats()
    stats = (time.thread_time() - begin) / 100
    return here / BATCHES * 1e6, there / BATCHES * 1e6, stats * 1e6


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    warnings.filterwarnings('ignore')
    print('| streams | cache | workers | batch | worker | stats |\n|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as root:
        for count in (1, 8, 1000):
            folders = write(Path(root, f'data{count}'), count)
            for limit in (False, True):
                if limit and count == 1000:
                    continue  # a limit looks at all folders at each fetch, which is not what is measured here
                for workers in (0, 1):
                    cache = Path(root, f'cache{count}')
                    found = [measure(folders, workers, limit, cache) for _ in range(rounds)]
                    cells = [f'{statistics.median(values):.0f}' for values in zip(*found, strict=True)]
                    kind = 'under a limit' if limit else 'local'
                    print(f'| {count:,} | {kind} | {workers} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
    main()
