"""The same Parquet files, read shuffled by headrace and Hugging Face datasets; and MDS of the same samples.

    python benchmarks/parquet.py [ROUNDS] [--json OUT]

60,000 samples, an id and 60 words, in four files with row groups of 5,000 rows. MDS has shards of as many rows. The
remote is a folder in the page cache, the cache folder is empty, and there are no workers. Each run is a process of its
own, and rounds are interleaved.

- "epoch 1" is from opening to the last batch of 64; "epoch 2" is the next pass of the same process.
- "rows" is the rate of single samples by random number, 2,000 of them after epoch 2; a streaming reader has none.
- "next start" is from opening to the first batch in a next process, in which caches are full.
- Hugging Face streams with a shuffle buffer of 10,000 samples. "mapped" converts the files to Arrow first, and needs
  all of them on the disk. litdata's reader of Parquet needs polars, and is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROWS, FILES, GROUP, BATCH = 60_000, 4, 5_000, 64
READERS = ('mds', 'parquet', 'huggingface', 'huggingface mapped')


def write(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace import MDSWriter

    rng = random.Random(7)
    words = ['word', 'token', 'sample', 'shard', 'epoch', 'batch', 'stream', 'cache', 'index', 'order']
    texts = [' '.join(rng.choices(words, k=60)) for _ in range(ROWS)]
    table = pa.table({'id': list(range(ROWS)), 'text': texts})
    (folder / 'parquet').mkdir()
    for number in range(FILES):
        part = table.slice(number * ROWS // FILES, ROWS // FILES)
        pq.write_table(part, folder / 'parquet' / f'train-{number:05}-of-{FILES:05}.parquet', row_group_size=GROUP)
    with MDSWriter(out=str(folder / 'mds'), columns={'id': 'int', 'text': 'str'}, size_limit='2mb') as writer:
        for number, text in enumerate(texts):
            writer.write({'id': number, 'text': text})


def open_headrace(remote: str, cache: str) -> tuple[Iterable[Any], Callable[[int], Any] | None]:
    from headrace import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(remote=remote, local=cache, batch_size=BATCH, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=BATCH), dataset.__getitem__


def open_huggingface(remote: str, cache: str) -> tuple[Iterable[Any], None]:
    os.environ['HF_HOME'] = cache
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    data = load_dataset('parquet', data_files=f'{remote}/*.parquet', split='train', streaming=True)
    return DataLoader(data.shuffle(seed=1, buffer_size=10_000), batch_size=BATCH), None


def open_mapped(remote: str, cache: str) -> tuple[Iterable[Any], Callable[[int], Any]]:
    os.environ['HF_HOME'] = cache
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    data = load_dataset('parquet', data_files=f'{remote}/*.parquet', split='train')
    return DataLoader(data, batch_size=BATCH, shuffle=True), data.__getitem__


def opener(name: str) -> Callable[[str, str], tuple[Iterable[Any], Callable[[int], Any] | None]]:
    return {'huggingface': open_huggingface, 'huggingface mapped': open_mapped}.get(name, open_headrace)


def run(name: str, remote: str, cache: str, again: bool) -> None:
    """One process: print the figures as JSON."""
    opened = opener(name)
    begin = time.perf_counter()
    loader, get = opened(remote, cache)
    if again:
        next(iter(loader))
        print(json.dumps({'next': time.perf_counter() - begin}), flush=True)
        os._exit(0)
    figures: dict[str, float] = {}
    for epoch in ('first', 'second'):
        count = sum(len(batch['text']) for batch in loader)
        assert abs(count - ROWS) < 2 * BATCH, count
        figures[epoch] = time.perf_counter() - begin
        begin = time.perf_counter()
    if get is not None:
        numbers = random.Random(1).sample(range(ROWS), 2_000)
        begin = time.perf_counter()
        for number in numbers:
            get(number)
        figures['rows'] = 2_000 / (time.perf_counter() - begin)
    print(json.dumps(figures), flush=True)
    os._exit(0)


def measure(name: str, folder: Path, root: Path, round_number: int) -> dict[str, float]:
    remote = folder / ('mds' if name == 'mds' else 'parquet')
    cache = root / f'cache-{name}-{round_number}'
    cache.mkdir()
    found: dict[str, float] = {}
    for again in ('', 'again'):
        command = [sys.executable, __file__, '--run', name, str(remote), str(cache), again]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('rounds', nargs='?', type=int, default=5)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--run', nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        name, remote, cache, again = given.run
        run(name, remote, cache, bool(again))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        (root / 'data').mkdir()
        write(root / 'data')
        for number in range(given.rounds):
            for name in READERS:
                found[name].append(measure(name, root / 'data', root, number))
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    print('| reader | epoch 1, samples/s | epoch 2, samples/s | x headrace, epoch 2 | rows/s | next start |')
    print('|---|---|---|---|---|---|')
    for name, one in medians.items():
        rows = f'{one["rows"]:,.0f}' if 'rows' in one else ''
        print(
            f'| {name} | {ROWS / one["first"]:,.0f} | {ROWS / one["second"]:,.0f} | '
            f'{one["second"] / medians["parquet"]["second"]:.1f} | {rows} | {one["next"]:.2f} s |'
        )
    if given.json:
        given.json.write_text(json.dumps(medians, indent=1))


if __name__ == '__main__':
    main()
