"""The same samples in formats that headrace reads without conversion, beside MDS.

    python benchmarks/sources.py [ROUNDS] [--formats mds,webdataset,...] [--json OUT]

**text**: an id and 60 words, 60,000 samples. **files**: an id and 50 kB of random bytes, 4,000 samples, as images have.
The remote is a folder in the page cache, the cache folder is empty, and there are no workers. Each run is a process of
its own, and rounds are interleaved.

- "open" is from the call of `StreamingDataset` to its return: listing, and indexing once.
- "epoch 1" fetches, unpacks and reads; "epoch 2" reads from the cache. Both are shuffled, in batches of 64.
- "again" is the opening in a next process, whose cache folder has the index.
- "x MDS" is the ratio of the medians of epoch 1 with the opening.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SETS = {'text': 60_000, 'files': 4_000}
SHARD = 1 << 25


def samples(kind: str) -> Iterator[dict[str, Any]]:
    rng = random.Random(7)
    words = ['word', 'token', 'sample', 'shard', 'epoch', 'batch', 'stream', 'cache', 'index', 'order']
    for number in range(SETS[kind]):
        if kind == 'text':
            yield {'id': number, 'text': ' '.join(rng.choices(words, k=60))}
        else:
            yield {'id': number, 'bin': rng.randbytes(50_000)}


def write_mds(folder: Path, kind: str) -> None:
    from headrace import MDSWriter

    columns = {'id': 'int', **({'text': 'str'} if kind == 'text' else {'bin': 'bytes'})}
    with MDSWriter(out=str(folder), columns=columns, size_limit=SHARD) as writer:
        for sample in samples(kind):
            writer.write(sample)


def write_webdataset(folder: Path, kind: str) -> None:
    tar: tarfile.TarFile | None = None
    for number, sample in enumerate(samples(kind)):
        if tar is None or tar.offset > SHARD:
            if tar is not None:
                tar.close()
            tar = tarfile.open(folder / f'{number:08}.tar', 'w')  # noqa: SIM115
        for name, value in sample.items():
            data = value if isinstance(value, bytes) else str(value).encode()
            info = tarfile.TarInfo(f'{number:08}.{name}')
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert tar is not None
    tar.close()


def write_litdata(folder: Path, kind: str) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=SHARD)
    for number, sample in enumerate(samples(kind)):
        writer.add_item(number, tuple(sample.values()))  # a tuple: rows of dicts would become Arrow data
    writer.done()
    writer.merge()


def write_parquet(folder: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(list(samples(kind)))
    pq.write_table(table, folder / 'a.parquet', row_group_size=max(1, SHARD * table.num_rows // table.nbytes))


def write_arrow(folder: Path, kind: str) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(list(samples(kind)))
    with pa.OSFile(str(folder / 'a.arrow'), 'wb') as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def write_jsonl(folder: Path, kind: str) -> None:
    with open(folder / 'a.jsonl', 'w') as file:
        file.writelines(json.dumps(sample) + '\n' for sample in samples(kind))


def write_jsonl_gz(folder: Path, kind: str) -> None:
    # 16 files: each is a part.
    files = [gzip.open(folder / f'{n:02}.jsonl.gz', 'wt', compresslevel=4) for n in range(16)]  # noqa: SIM115
    for number, sample in enumerate(samples(kind)):
        files[number * 16 // SETS[kind]].write(json.dumps(sample) + '\n')
    for file in files:
        file.close()


def write_csv(folder: Path, kind: str) -> None:
    with open(folder / 'a.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, ['id', 'text'])
        writer.writeheader()
        writer.writerows(samples(kind))


WRITERS: dict[str, Callable[[Path, str], None]] = {
    'mds': write_mds,
    'parquet': write_parquet,
    'arrow': write_arrow,
    'webdataset': write_webdataset,
    'litdata': write_litdata,
    'jsonl': write_jsonl,
    'jsonl.gz': write_jsonl_gz,
    'csv': write_csv,
}
TEXT_ONLY = {'jsonl', 'jsonl.gz', 'csv'}


def run(remote: str, name: str) -> None:
    """One process: print the figures as JSON."""
    from headrace import StreamingDataLoader, StreamingDataset

    with tempfile.TemporaryDirectory() as cache:

        def opened() -> tuple[Any, float]:
            start = time.perf_counter()
            dataset = StreamingDataset(
                remote=remote, local=cache, format=name.partition('.')[0], batch_size=64, shuffle=True
            )
            return dataset, time.perf_counter() - start

        cpu = time.process_time()
        dataset, opening = opened()
        epochs: list[float] = []
        for _ in range(2):
            start = time.perf_counter()
            count = sum(len(batch[next(iter(batch))]) for batch in StreamingDataLoader(dataset, num_workers=0))
            epochs.append(time.perf_counter() - start)
            assert count >= len(dataset)
        cpu = time.process_time() - cpu
        _, again = opened()
    print(json.dumps({'open': opening, 'again': again, 'first': epochs[0], 'second': epochs[1], 'cpu': cpu}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('rounds', nargs='?', type=int, default=5)
    parser.add_argument('--formats', default=','.join(WRITERS))
    parser.add_argument('--json', type=Path)
    parser.add_argument('--run', nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(*given.run)
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for kind, rows in SETS.items():
            names = [name for name in given.formats.split(',') if kind == 'text' or name not in TEXT_ONLY]
            found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for name in names:
                folder = Path(root) / kind / name
                folder.mkdir(parents=True)
                WRITERS[name](folder, kind)
            for _ in range(given.rounds):
                for name in names:
                    command = [sys.executable, __file__, '--run', str(Path(root) / kind / name), name]
                    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
                    found[name].append(json.loads(done.stdout.splitlines()[-1]))
            medians = {
                name: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
                for name, runs in found.items()
            }
            figures[kind] = medians
            print(f'\n| {kind} | open | epoch 1, samples/s | x MDS | epoch 2, samples/s | again |')
            print('|---|---|---|---|---|---|')
            for name, one in medians.items():
                mds = medians.get('mds', one)
                ratio = (one['open'] + one['first']) / (mds['open'] + mds['first'])
                print(
                    f'| {name} | {one["open"]:.2f} s | {rows / one["first"]:,.0f} | {ratio:.2f} | '
                    f'{rows / one["second"]:,.0f} | {one["again"]:.3f} s |'
                )
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == '__main__':
    main()
