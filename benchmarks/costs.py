"""What the lengths of samples cost before a run: bytes read, seconds, and processor seconds.

    python benchmarks/costs.py [--rows 10000000] [--folder DIR]

Token lists of log-normal lengths, 46 on average, are written as Parquet files of 500,000 rows with row groups of
100,000, and a tenth of the rows as MDS shards, with and without `cost`. Each is then measured with an empty cache.
"bytes" are those that the process asked the file system for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace import MDSWriter, Stream
from headrace.inspect.costs import measure

FILE = 500_000


def parquet(folder: Path, rows: int, rng: np.random.Generator) -> None:
    folder.mkdir()
    for number, first in enumerate(range(0, rows, FILE)):
        lengths = lengths_of(min(FILE, rows - first), rng)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = rng.integers(0, 32000, offsets[-1], dtype=np.int32)
        table = pa.table({'tokens': pa.ListArray.from_arrays(offsets, tokens), 'length': lengths})
        pq.write_table(table, folder / f'{number:05}.parquet', row_group_size=100_000)


def mds(folder: Path, rows: int, rng: np.random.Generator, cost: str | None) -> None:
    tokens = rng.integers(0, 32000, 1 << 13, dtype=np.int32)
    with MDSWriter(out=str(folder), columns={'tokens': 'ndarray:int32'}, cost=cost, size_limit='16mb') as out:
        for first in range(0, rows, 10_000):
            lengths = lengths_of(min(10_000, rows - first), rng)
            out.write_batch({'tokens': [tokens[:length] for length in lengths.tolist()]})


def lengths_of(rows: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.minimum(np.exp(rng.normal(3.5, 0.8, rows)).astype(np.int32) + 1, 4096)


def bytes_read() -> int:
    return int(Path('/proc/self/io').read_text().split()[1])


def report(data: Path, column: str) -> None:
    with tempfile.TemporaryDirectory(dir=data.parent) as cache:
        wall, processor, read = time.perf_counter(), time.process_time(), bytes_read()
        (found,) = measure([Stream(remote=str(data), local=cache)], column)
        seconds = f'{time.perf_counter() - wall:.1f} s, {time.process_time() - processor:.1f} s of processor time'
        print(f'{data.name}, cost {column}: {found.samples:,} rows, {(bytes_read() - read) / 1e6:,.0f} MB, {seconds}')


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--rows', type=int, default=10_000_000)
    parser.add_argument('--folder', type=Path, help='where the data are made (default: the folder for temporary files)')
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        parquet(folder / 'parquet', arguments.rows, rng)
        report(folder / 'parquet', 'length')
        report(folder / 'parquet', 'tokens')
        for name, cost in (('mds', None), ('mds with cost', 'tokens')):
            mds(folder / name, arguments.rows // 10, rng, cost)
            report(folder / name, 'tokens')


if __name__ == '__main__':
    main()
