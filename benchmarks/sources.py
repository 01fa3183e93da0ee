"""The same samples in formats that headrace reads without conversion, beside MDS: read, and converted to MDS.

    python benchmarks/sources.py [ROUNDS] [--formats mds,webdataset,...] [--workers 1] [--json OUT]

**text**: an id and 60 words, 30,000 samples. **files**: an id and 50 kB of random bytes, 2,000 samples, as images have.
Parquet, Arrow, Hugging Face's and litdata's data are made with their own libraries. The remote is a folder in the page
cache, the cache folder is empty, and no worker reads. Each run is a process of its own, and rounds are interleaved. A
round takes a minute on a quiet machine.

- "open" is from the call of `StreamingDataset` to its return: listing, and indexing once.
- "epoch 1" fetches, unpacks and reads; "epoch 2" reads from the cache. Both are shuffled, in batches of 64.
- "again" is the opening in a next process, whose cache folder has the index.
- "x MDS" is the ratio of the medians of epoch 1 with the opening.
- "convert" is `headrace.convert.convert`, or `reshard` of MDS, without imports.
- "equal" says that each value of the source, read and converted, was compared with the sample that was written.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SETS = {'text': 30_000, 'files': 2_000}
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


def write_delta(folder: Path, kind: str) -> None:
    import deltalake
    import pyarrow as pa

    table = pa.Table.from_pylist(list(samples(kind)))
    rows = max(1, SHARD * table.num_rows // table.nbytes)
    deltalake.write_deltalake(folder, table, writer_properties=deltalake.WriterProperties(max_row_group_size=rows))


def write_iceberg(folder: Path, kind: str) -> None:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    table = pa.Table.from_pylist(list(samples(kind)))
    rows = max(1, SHARD * table.num_rows // table.nbytes)
    catalog = SqlCatalog('benchmark', uri='sqlite:///:memory:', warehouse=f'file://{folder}')
    catalog.create_namespace('n')
    properties = {'write.parquet.row-group-limit': str(rows)}
    catalog.create_table('n.t', schema=table.schema, properties=properties).append(table)


def write_arrow(folder: Path, kind: str) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(list(samples(kind)))
    with pa.OSFile(str(folder / 'a.arrow'), 'wb') as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def write_huggingface(folder: Path, kind: str) -> None:
    import datasets

    datasets.disable_progress_bars()
    columns = list(samples(kind))
    data = {name: [sample[name] for sample in columns] for name in columns[0]}
    datasets.Dataset.from_dict(data).save_to_disk(str(folder), num_shards=4)


def write_jsonl(folder: Path, kind: str) -> None:
    with open(folder / 'a.jsonl', 'w') as file:
        file.writelines(json.dumps(sample) + '\n' for sample in samples(kind))


def write_parts(folder: Path, kind: str, ending: str, opened: Callable[[Path], Any]) -> None:
    # 16 files: each is a part.
    files = [opened(folder / f'{n:02}.jsonl.{ending}') for n in range(16)]
    for number, sample in enumerate(samples(kind)):
        files[number * 16 // SETS[kind]].write(json.dumps(sample) + '\n')
    for file in files:
        file.close()


def write_jsonl_gz(folder: Path, kind: str) -> None:
    write_parts(folder, kind, 'gz', lambda path: gzip.open(path, 'wt', compresslevel=4))  # noqa: SIM115


def write_jsonl_zst(folder: Path, kind: str) -> None:
    import zstandard

    write_parts(folder, kind, 'zst', lambda path: zstandard.open(path, 'wt'))


def write_separated(folder: Path, kind: str, ending: str, delimiter: str) -> None:
    with open(folder / f'a.{ending}', 'w', newline='') as file:
        writer = csv.DictWriter(file, ['id', 'text'], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(samples(kind))


def write_csv(folder: Path, kind: str) -> None:
    write_separated(folder, kind, 'csv', ',')


def write_tsv(folder: Path, kind: str) -> None:
    write_separated(folder, kind, 'tsv', '\t')


WRITERS: dict[str, Callable[[Path, str], None]] = {
    'mds': write_mds,
    'parquet': write_parquet,
    'delta': write_delta,
    'iceberg': write_iceberg,
    'arrow': write_arrow,
    'huggingface': write_huggingface,
    'webdataset': write_webdataset,
    'litdata': write_litdata,
    'jsonl': write_jsonl,
    'jsonl.gz': write_jsonl_gz,
    'jsonl.zst': write_jsonl_zst,
    'csv': write_csv,
    'tsv': write_tsv,
}
TEXT_ONLY = {'jsonl', 'jsonl.gz', 'jsonl.zst', 'csv', 'tsv'}


def format_of(name: str) -> str:
    """The value of `format` for a name of `WRITERS`."""
    return 'arrow' if name == 'huggingface' else name.partition('.')[0]


def run(what: str, remote: str, name: str, kind: str, workers: str) -> None:
    """One process: print the figures as JSON."""
    steps = {'read': read, 'convert': convert, 'check': check}
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(steps[what](remote, name, kind, int(workers), folder)))


def read(remote: str, name: str, kind: str, workers: int, folder: str) -> dict[str, float]:
    del kind, workers
    from headrace import StreamingDataLoader, StreamingDataset

    def opened() -> tuple[Any, float]:
        start = time.perf_counter()
        dataset = StreamingDataset(remote=remote, local=folder, format=format_of(name), batch_size=64, shuffle=True)
        return dataset, time.perf_counter() - start

    dataset, opening = opened()
    epochs: list[float] = []
    for _ in range(2):
        start = time.perf_counter()
        count = sum(len(batch[next(iter(batch))]) for batch in StreamingDataLoader(dataset, num_workers=0))
        epochs.append(time.perf_counter() - start)
        assert count >= len(dataset)
    _, again = opened()
    return {'open': opening, 'again': again, 'first': epochs[0], 'second': epochs[1]}


def convert(remote: str, name: str, kind: str, workers: int, folder: str) -> dict[str, float]:
    del kind
    import headrace.convert

    out, cpu, begin = f'{folder}/out', cpu_seconds(), time.perf_counter()
    if name == 'mds':
        headrace.convert.reshard(remote, out)
    else:
        headrace.convert.convert(remote, out, format=format_of(name), workers=workers, progress_bar=False)
    seconds = time.perf_counter() - begin
    return {'convert': seconds, 'convert CPU': cpu_seconds() - cpu, 'result': float(size_of(out))}


def check(remote: str, name: str, kind: str, workers: int, folder: str) -> dict[str, float]:
    """Compare each value of the source, and of what is made of it, with what was written."""
    from headrace import StreamingDataset

    convert(remote, name, kind, workers, folder)
    datasets = [
        StreamingDataset(remote=remote, local=f'{folder}/cache', format=format_of(name), batch_size=1),
        StreamingDataset(local=f'{folder}/out', batch_size=1),
    ]
    for dataset in datasets:
        assert len(dataset) == SETS[kind], (name, len(dataset))
        for number, sample in enumerate(samples(kind)):
            found = dataset[number]
            names = ('0', '1') if '0' in found else sample
            values = [found[column] for column in names]
            # A tar has files, whose content is text only if their ending says so.
            number_found, value = (one.decode() if isinstance(one, bytes) and kind == 'text' else one for one in values)
            written, (key, expected) = sample['id'], list(sample.items())[1]
            assert (int(number_found), value) == (written, expected), (name, number, key)
    return {'rows': float(SETS[kind]), 'source': float(size_of(remote))}


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def size_of(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob('*') if path.is_file())


def in_a_process(what: str, folder: Path, name: str, kind: str, workers: int) -> dict[str, float]:
    command = [sys.executable, __file__, '--run', what, str(folder), name, kind, str(workers)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'{what} {name}: {done.stderr[-2000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('rounds', nargs='?', type=int, default=3)
    parser.add_argument('--formats', default=','.join(WRITERS))
    parser.add_argument('--workers', type=int, default=1, help='processes of a conversion')
    parser.add_argument('--json', type=Path)
    parser.add_argument('--run', nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(*given.run)
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for kind, rows in SETS.items():
            names = [name for name in given.formats.split(',') if kind == 'text' or name not in TEXT_ONLY]
            found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            checked: dict[str, dict[str, float]] = {}
            for name in names:
                folder = Path(root) / kind / name
                folder.mkdir(parents=True)
                WRITERS[name](folder, kind)
                checked[name] = in_a_process('check', folder, name, kind, given.workers)
            for _ in range(given.rounds):
                for name in names:
                    one = [
                        in_a_process(what, Path(root) / kind / name, name, kind, given.workers)
                        for what in ('read', 'convert')
                    ]
                    found[name].append(one[0] | one[1])
            medians = {
                name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} | checked[name]
                for name, runs in found.items()
            }
            figures[kind] = medians
            report(kind, rows, medians)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


def report(kind: str, rows: int, medians: dict[str, dict[str, float]]) -> None:
    print(
        f'\n| {kind}, {rows:,} rows | source | open | epoch 1 | x MDS | epoch 2 | again | convert | CPU s | result '
        '| equal |'
    )
    print('|---|---|---|---|---|---|---|---|---|---|---|')
    for name, one in medians.items():
        mds = medians.get('mds', one)
        ratio = (one['open'] + one['first']) / (mds['open'] + mds['first'])
        print(
            f'| {name} | {one["source"] / 1e6:.0f} MB | {one["open"]:.2f} s | {one["first"]:.2f} s | {ratio:.2f} | '
            f'{one["second"]:.2f} s | {one["again"]:.3f} s | {one["convert"]:.2f} s | {one["convert CPU"]:.2f} | '
            f'{one["result"] / 1e6:.0f} MB | yes |'
        )


if __name__ == '__main__':
    main()
