"""The cost of a conversion on a cluster: processor time per GB of the task alone, and of whole Spark and Ray jobs.

usage: python benchmarks/clusters.py [--rounds N] [--mb M] [--cases task spark ray] [--json OUT]

The data are Parquet files of M megabytes each, in row groups of 16 MB:

- "text": documents of about 2,500 characters.
- "tokens": rows of 2,048 int32.
- "files": values of 100 kB that do not compress, as images.

headrace and mosaicml-streaming write them as MDS in turn, text with zstd, the others without compression. "task" is
one partition in this process, from Arrow batches as Spark hands them out: processor time of the converter alone.
"spark" and "ray" are whole jobs on two cores, from files to files, after one small job. Their processor time is that of
all processes: the JVM or Ray's, and the Python workers. The rate is megabytes (10^6) of values per processor second.
Figures are medians of N rounds.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Work = Callable[[Path], None]
"""Converts the data of a case into a folder."""
DATA = ('text', 'tokens', 'files')
COLUMNS = {
    'text': {'id': 'int64', 'text': 'str'},
    'tokens': {'tokens': 'ndarray:int32'},
    'files': {'content': 'bytes'},
}
ROW_GROUP = 16_000_000


def table_of(data: str, size: int) -> pa.Table:
    """Rows of about `size` bytes."""
    rng = np.random.default_rng(0)
    if data == 'text':
        words = np.array([f'{"abcdefghijklmnopqrst"[: 2 + i % 9]}{i:x}' for i in range(20_000)])
        rows = size // 2500
        chosen = words[np.minimum(rng.zipf(1.3, (rows, 330)), len(words)) - 1]
        return pa.table({'id': np.arange(rows), 'text': [' '.join(row)[:2500].ljust(2500, '.') for row in chosen]})
    if data == 'tokens':
        values = rng.integers(0, 50_000, size // 4 // 2048 * 2048, dtype=np.int32)
        offsets = pa.array(np.arange(0, len(values) + 1, 2048, dtype=np.int32))
        return pa.table({'tokens': pa.ListArray.from_arrays(offsets, pa.array(values))})
    return pa.table({'content': [rng.bytes(100_000) for _ in range(size // 100_000)]})


def write_inputs(root: Path, size: int) -> None:
    for data in DATA:
        table = table_of(data, size)
        folder = root / data
        folder.mkdir()
        rows = max(1, ROW_GROUP * table.num_rows // table.nbytes)
        half = table.num_rows // 2
        for number, part in enumerate((table.slice(0, half), table.slice(half))):
            pq.write_table(part, folder / f'{number}.parquet', row_group_size=rows, compression='zstd')
        (root / f'{data}-first').mkdir()
        pq.write_table(table.slice(0, 100), root / f'{data}-first' / '0.parquet')


def options_of(data: str) -> dict[str, Any]:
    return {'compression': 'zstd' if data == 'text' else None, 'columns': COLUMNS[data]}


def processor_seconds(root: int) -> float:
    """Processor time of a process and of all that descend from it, living or ended."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            fields = (folder / 'stat').read_text().rpartition(')')[2].split()
        except OSError:
            continue
        pid = int(folder.name)
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(map(int, fields[11:15])) / os.sysconf('SC_CLK_TCK')
    below, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        below += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return below


def timed(work: Callable[[], None]) -> dict[str, float]:
    before, begin = processor_seconds(os.getpid()), time.perf_counter()
    work()
    return {'seconds': time.perf_counter() - begin, 'cpu': processor_seconds(os.getpid()) - before}


def task_of_headrace(data: str, batches: list[pa.RecordBatch], out: Path) -> None:
    from headrace.convert.parts import PartedDataset
    from headrace.convert.spark import write_partition

    options = options_of(data)
    dataset = PartedDataset(str(out), options.pop('columns'), options)
    dataset.finish([write_partition(dataset.begin(), 0, batches)])


def task_of_mosaicml(data: str, batches: list[pa.RecordBatch], out: Path) -> None:
    """The work of a task of their `dataframe_to_mds`: pandas frames, whose rows are written one by one."""
    from streaming import MDSWriter

    with MDSWriter(out=str(out), **options_of(data)) as writer:
        for batch in batches:
            for sample in batch.to_pandas().to_dict('records'):
                writer.write(sample)


def measure_task(root: Path) -> Iterator[tuple[str, dict[str, Work]]]:
    @functools.cache
    def batches_of(source: str) -> list[pa.RecordBatch]:
        # As many rows as Spark hands out at a time, by default.
        return pq.read_table(root / source).combine_chunks().to_batches(max_chunksize=10_000)

    def task(converter: Callable[[str, list[pa.RecordBatch], Path], None], data: str, source: str, out: Path) -> None:
        converter(data, batches_of(source), out)

    for data in DATA:
        batches_of(data)
        batches = pq.read_table(root / data).combine_chunks().to_batches(max_chunksize=10_000)
        yield (
            data,
            {
                'headrace': functools.partial(task_of_headrace, data, batches),
                'mosaicml': functools.partial(task_of_mosaicml, data, batches),
            },
        )


def measure_spark(root: Path) -> Iterator[tuple[str, dict[str, Work]]]:
    from pyspark.sql import SparkSession
    from streaming.base.converters import dataframe_to_mds as theirs

    from headrace.convert import dataframe_to_mds as ours

    os.environ['PYSPARK_PYTHON'] = sys.executable
    spark = (
        SparkSession.builder.master('local[2]')
        .config('spark.ui.enabled', 'false')
        .config('spark.ui.showConsoleProgress', 'false')
        .config('spark.driver.host', '127.0.0.1')
        .config('spark.driver.bindAddress', '127.0.0.1')
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel('OFF')

    def convert(converter: Any, data: str, source: str, out: Path) -> None:
        converter(spark.read.parquet(str(root / source)), mds_kwargs={'out': str(out), **options_of(data)})

    try:
        for data in DATA:
            yield data, first_small(
                root, data, {name: functools.partial(convert, converter, data) for name, converter in
                             {'headrace': ours, 'mosaicml': theirs}.items()}
            )  # fmt: skip
    finally:
        spark.stop()


def measure_ray(root: Path) -> Iterator[tuple[str, dict[str, Work]]]:
    import ray

    from headrace.convert.ray import MDSDatasink

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def convert(data: str, source: str, out: Path) -> None:
        dataset = ray.data.read_parquet(str(root / source), override_num_blocks=2)
        dataset.write_datasink(MDSDatasink(str(out), **options_of(data)))

    try:
        for data in DATA:
            yield data, first_small(root, data, {'headrace': functools.partial(convert, data)})
    finally:
        ray.shutdown()


def first_small(root: Path, data: str, converts: dict[str, Callable[[str, Path], None]]) -> dict[str, Work]:
    """Start the engine's Python workers with a small job, which does not count."""
    for convert in converts.values():
        convert(f'{data}-first', root / 'first')
        shutil.rmtree(root / 'first')
    return {name: functools.partial(convert, data) for name, convert in converts.items()}


CASES = {'task': measure_task, 'spark': measure_spark, 'ray': measure_ray}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--mb', type=int, default=128)
    parser.add_argument('--cases', nargs='+', choices=CASES, default=list(CASES))
    parser.add_argument('--json', type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter('ignore')
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix='clusters-') as folder:
        root = Path(folder)
        write_inputs(root, arguments.mb * 1_000_000)
        sizes = {data: pq.read_table(root / data).nbytes / 1e6 for data in DATA}
        for case in arguments.cases:
            for data, works in CASES[case](root):
                for number in range(arguments.rounds):
                    for name in sorted(works, reverse=number % 2 == 1):
                        done = timed(functools.partial(works[name], root / 'out'))
                        found.setdefault(f'{case} {data} {name}', []).append(done)
                        shutil.rmtree(root / 'out')
    print('| case | data | converter | MB per processor second | MB/s | headrace is |')
    print('|---|---|---|---|---|---|')
    for key, rounds in found.items():
        case, data, name = key.split()
        cpu, seconds = (statistics.median(one[of] for one in rounds) for of in ('cpu', 'seconds'))
        ours = statistics.median(one['cpu'] for one in found[f'{case} {data} headrace'])
        ratio = '' if name == 'headrace' else f'{cpu / ours:.1f} x'
        print(f'| {case} | {data} | {name} | {sizes[data] / cpu:.0f} | {sizes[data] / seconds:.0f} | {ratio} |')
    if arguments.json:
        arguments.json.write_text(json.dumps({'sizes': sizes, 'rounds': found}))


if __name__ == '__main__':
    main()
