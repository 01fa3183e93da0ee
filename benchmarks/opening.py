"""Opening a dataset, its first batch and its batches per second, of two source trees beside each other.

usage: python benchmarks/opening.py --before SRC --after SRC [--rounds N] [--seconds S] [--json OUT]

SRC is the ``src`` folder of a checkout. A round measures each case in a fresh process of each tree, one right after the
other; which of them is first changes from round to round. The time of imports does not count. The cases:

- "local" and "cached": the shuffled dataset of tokens, from its folder, and from the filled cache of a remote folder.
  "open" is the time of the dataset, its loader, `len` and `iter`. "first batch" ends with the first batch.
- "tokens" and "text": batches per second after the first batch, over whole epochs for at least S seconds. Tokens are
  rows of 2,048 int32 in batches of 16. Text is an id and 10 to 60 words in batches of 64.

"cpu" is processor time in seconds, with that of the workers: until the first batch, or of a batch. Ratios are
after / before. The later tree is faster if the ratio of times is below 1, or that of rates above 1. "pairs" are the
quartiles of the rounds' own ratios. Data and caches take 500 MB of a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLES = {'tokens': 16_384, 'text': 200_000}
BATCH = {'tokens': 16, 'text': 64}
WORKERS = (0, 2)


def write(root: Path) -> None:
    """Write both datasets, in shards of 2 MB."""
    import numpy as np

    from headrace import MDSWriter

    rng = np.random.default_rng(0)
    with MDSWriter(out=str(root / 'tokens'), columns={'tokens': 'ndarray:int32:2048'}, size_limit=1 << 21) as writer:
        for row in rng.integers(0, 50_000, (SAMPLES['tokens'], 2048), dtype=np.int32):
            writer.write({'tokens': row})
    words = np.array([f'word{i}' for i in range(5000)])
    with MDSWriter(out=str(root / 'text'), columns={'id': 'int', 'text': 'str'}, size_limit=1 << 21) as writer:
        for number, length in enumerate(rng.integers(10, 60, SAMPLES['text']).tolist()):
            writer.write({'id': number, 'text': ' '.join(words[rng.integers(0, 5000, length)])})


def processor_seconds() -> float:
    """Processor time of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(case: str, workers: int, root: Path, cache: Path, seconds: float) -> dict[str, float]:
    """Measure one case in this process; times in seconds, rates in batches per second."""
    import torch  # noqa: F401

    from headrace import StreamingDataLoader, StreamingDataset

    data = case if case in SAMPLES else 'tokens'
    remote = str(root / data) if case in ('cached', 'fill') else None
    local = str(root / data) if remote is None else str(cache / data)
    cpu, begin = processor_seconds(), time.perf_counter()
    dataset = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=BATCH[data])
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
    batches = len(loader)
    iterator = iter(loader)
    opened = time.perf_counter()
    next(iterator)
    first = time.perf_counter()
    if case == 'fill':
        return {'batches': 1 + sum(1 for _ in iterator)}
    if case not in SAMPLES:
        del iterator, loader, dataset  # workers end, so that their time is known
        return {'open': opened - begin, 'first batch': first - begin, 'cpu': processor_seconds() - cpu}
    count = sum(1 for _ in iterator)
    while time.perf_counter() - first < seconds:
        count += sum(1 for _ in loader)
    took = time.perf_counter() - first
    assert count % batches == batches - 1
    del iterator, loader, dataset
    return {'batches/s': count / took, 'cpu': (processor_seconds() - cpu) / (count + 1)}


def in_process(source: Path, *arguments: str) -> str:
    """Run this file in a fresh process that imports headrace from a source tree; returns its last line."""
    environment = {**os.environ, 'PYTHONPATH': str(source), 'PYTHONWARNINGS': 'ignore'}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip().rpartition('\n')[2]


def rounds(trees: dict[str, Path], count: int, seconds: float, root: Path) -> dict[str, dict[str, list[float]]]:
    """Values of all rounds, by row of the table and tree."""
    found: dict[str, dict[str, list[float]]] = {}

    def run(name: str, case: str, workers: int) -> dict[str, float]:
        cache = root / f'cache-{name}'
        arguments = {'case': case, 'workers': workers, 'root': root, 'cache': cache, 'seconds': seconds}
        return json.loads(in_process(trees[name], *(f'--{key}={value}' for key, value in arguments.items())))

    for name in trees:  # a cache that lacks shards would be filled during the first batches
        run(name, 'fill', 0)
    for number in range(count):
        for case in ('local', 'cached', *SAMPLES):
            for workers in WORKERS:
                for name in trees if number % 2 else reversed(trees):
                    for what, value in run(name, case, workers).items():
                        row = f'{case}, {workers} workers: {what}'
                        found.setdefault(row, {each: [] for each in trees})[name].append(value)
        print(f'round {number + 1} of {count}', file=sys.stderr, flush=True)
    return found


def row_of(name: str, before: list[float], after: list[float]) -> str:
    """A line of the table."""
    pairs = [b / a for a, b in zip(before, after, strict=True)]
    low, _, high = statistics.quantiles(pairs, n=4, method='inclusive') if len(pairs) > 1 else pairs * 3
    middle = statistics.median(before), statistics.median(after)
    cells = [f'{value:,.0f}' if value > 100 else f'{value:.3g}' for value in middle]
    return f'| {name} | {cells[0]} | {cells[1]} | **{middle[1] / middle[0]:.3f}** | {low:.2f} to {high:.2f} |'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--before', type=Path)
    parser.add_argument('--after', type=Path)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--seconds', type=float, default=3)
    parser.add_argument('--json', type=Path)
    for name in ('--case', '--workers', '--root', '--cache', '--write'):
        parser.add_argument(name, help=argparse.SUPPRESS)  # of the processes that it starts
    options = parser.parse_args()
    if options.write:
        write(Path(options.write))
    elif options.case:
        took = measure(options.case, int(options.workers), Path(options.root), Path(options.cache), options.seconds)
        print(json.dumps(took))
    elif options.before is None or options.after is None:
        parser.error('give two source trees: --before SRC --after SRC')
    else:
        trees = {'before': options.before.resolve(), 'after': options.after.resolve()}
        for tree in trees.values():
            if not (tree / 'headrace').is_dir():
                parser.error(f'a source tree must hold the folder headrace, got {tree}')
        with tempfile.TemporaryDirectory() as folder:
            in_process(trees['before'], '--write', folder)
            found = rounds(trees, options.rounds, options.seconds, Path(folder))
        print('| | before | after | after / before | pairs |\n|---|---|---|---|---|')
        for name, values in found.items():
            print(row_of(name, values['before'], values['after']))
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1))


if __name__ == '__main__':
    main()
