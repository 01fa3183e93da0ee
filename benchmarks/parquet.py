"""The same Parquet files and tars, read by headrace and by others; and MDS of the same samples.

    python benchmarks/parquet.py [ROUNDS] [--readers mds litdata ...] [--json OUT]

60,000 samples, an id and 60 words, in four files with row groups of 5,000 rows, or in four tars of 15,000 samples. MDS
has shards of as many rows as a row group. The remote is a folder in the page cache, the cache folder is empty, and no
worker reads. Each run is a process of its own, imports do not count, and rounds
are interleaved: about a minute each on a quiet machine.

- "epoch 1" is from opening to the last batch of 64; "epoch 2" is the next pass of the same process. Both are shuffled.
- "rows" is the rate of single samples by random number, 2,000 of them after epoch 2; a streaming reader has none.
- "cold rows" is the rate of 200 random rows from an empty cache, with the opening. Each first read of a row group or of
  a run of a tar fetches and decodes all of its rows; the next ones find them in the cache.
- "next start" is from opening to the first batch in a next process, in which caches are full.
- Hugging Face streams with a shuffle buffer of 10,000 samples. "mapped" converts the files to Arrow first, and needs
  all of them on the disk. litdata reads Parquet with polars, after `index_parquet_dataset`, which counts as opening.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROWS, FILES, GROUP, BATCH = 60_000, 4, 5_000, 64
WARM, COLD = 2_000, 200
"""Random rows that are read from a full cache, and from an empty one."""
READERS = ('mds', 'parquet', 'webdataset', 'huggingface', 'huggingface mapped', 'litdata')


MODULES = {'huggingface': ('datasets', 'torch.utils.data'), 'litdata': ('litdata', 'polars')}
"""Imports of each reader, before its time begins."""


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
    (folder / 'webdataset').mkdir()
    for number in range(FILES):
        with tarfile.open(folder / 'webdataset' / f'{number:06}.tar', 'w') as tar:
            for row in range(number * ROWS // FILES, (number + 1) * ROWS // FILES):
                for name, data in (('id', str(row).encode()), ('txt', texts[row].encode())):
                    info = tarfile.TarInfo(f'{row:08}.{name}')
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    with MDSWriter(out=str(folder / 'mds'), columns={'id': 'int', 'text': 'str'}, size_limit='2mb') as writer:
        for number, text in enumerate(texts):
            writer.write({'id': number, 'text': text})


def open_headrace(remote: str, cache: str) -> tuple[Iterable[Any], Callable[[int], Any] | None]:
    from headrace import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(remote=remote, local=cache, batch_size=BATCH, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=BATCH), dataset.__getitem__


def open_litdata(remote: str, cache: str) -> tuple[Iterable[Any], Callable[[int], Any]]:
    import litdata
    from litdata.streaming.item_loader import ParquetLoader

    copy = Path(cache, 'data')  # the index is written beside the files
    if not copy.exists():
        shutil.copytree(remote, copy)
        litdata.index_parquet_dataset(str(copy))
    data = litdata.StreamingDataset(str(copy), item_loader=ParquetLoader(), shuffle=True)
    return litdata.StreamingDataLoader(data, batch_size=BATCH), data.__getitem__


def open_huggingface(remote: str, cache: str) -> tuple[Iterable[Any], None]:
    del cache
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    data = load_dataset('parquet', data_files=f'{remote}/*.parquet', split='train', streaming=True)
    return DataLoader(data.shuffle(seed=1, buffer_size=10_000), batch_size=BATCH), None


def open_mapped(remote: str, cache: str) -> tuple[Iterable[Any], Callable[[int], Any]]:
    del cache
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    data = load_dataset('parquet', data_files=f'{remote}/*.parquet', split='train')
    return DataLoader(data, batch_size=BATCH, shuffle=True), data.__getitem__


def opener(name: str) -> Callable[[str, str], tuple[Iterable[Any], Callable[[int], Any] | None]]:
    others = {'huggingface': open_huggingface, 'huggingface mapped': open_mapped, 'litdata': open_litdata}
    return others.get(name, open_headrace)


def run(name: str, remote: str, cache: str, what: str) -> None:
    """One process: print the figures as JSON."""
    opened = opener(name)
    os.environ['HF_HOME'] = cache
    for module in MODULES.get(name.partition(' ')[0], ('headrace.dataset.dataset', 'headrace.dataset.loader')):
        importlib.import_module(module)
    begin = time.perf_counter()
    loader, get = opened(remote, cache)
    figures: dict[str, float] = {}
    if what == 'next':
        next(iter(loader))
        figures['next'] = time.perf_counter() - begin
    elif what == 'cold':
        if get is not None:
            for number in random.Random(2).sample(range(ROWS), COLD):
                get(number)
            figures['cold'] = COLD / (time.perf_counter() - begin)
    else:
        for epoch in ('first', 'second'):
            count = sum(len(batch['id']) for batch in loader)
            assert abs(count - ROWS) < 2 * BATCH, count
            figures[epoch] = time.perf_counter() - begin
            begin = time.perf_counter()
        if get is not None:
            numbers = random.Random(1).sample(range(ROWS), WARM)
            begin = time.perf_counter()
            for number in numbers:
                get(number)
            figures['rows'] = WARM / (time.perf_counter() - begin)
    print(json.dumps(figures), flush=True)
    os._exit(0)


def measure(name: str, folder: Path, root: Path, round_number: int) -> dict[str, float]:
    remote = folder / (name if name in ('mds', 'webdataset') else 'parquet')
    found: dict[str, float] = {}
    for what in ('epochs', 'next', 'cold'):
        # The next start has the cache of the epochs.
        cache = root / f'cache-{name}-{round_number}-{what == "cold"}'
        cache.mkdir(exist_ok=True)
        command = [sys.executable, __file__, '--run', name, str(remote), str(cache), what]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f'{name}: {done.stderr[-2000:]}')
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('rounds', nargs='?', type=int, default=5)
    parser.add_argument('--readers', nargs='+', choices=READERS, default=READERS)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--run', nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(*given.run)
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in given.readers}
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        (root / 'data').mkdir()
        write(root / 'data')
        for number in range(given.rounds):
            for name in given.readers:
                found[name].append(measure(name, root / 'data', root, number))
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    print(
        '| reader | epoch 1, rows/s | epoch 2 | epoch 1, x MDS | epoch 2, x MDS | rows/s | cold rows/s | next start |'
    )
    print('|---|---|---|---|---|---|---|---|')
    mds = medians.get('mds', next(iter(medians.values())))
    for name, one in medians.items():
        rates = ' | '.join(f'{one[key]:,.0f}' if key in one else 'none' for key in ('rows', 'cold'))
        print(
            f'| {name} | {ROWS / one["first"]:,.0f} | {ROWS / one["second"]:,.0f} | '
            f'{one["first"] / mds["first"]:.2f} | {one["second"] / mds["second"]:.2f} | {rates} | {one["next"]:.2f} s |'
        )
    if given.json:
        given.json.write_text(json.dumps(medians, indent=1))


if __name__ == '__main__':
    main()
