"""Files of records, read by headrace and by others: TFRecord in place, and ArrayRecord with the library of Grain.

    python benchmarks/records.py [ROUNDS] [--sets text tokens images] [--json OUT]

**text**: an id and 60 words, 30,000 rows. **tokens**: 2,048 int64, 4,000 rows. **images**: 50 kB and a label, 2,000.
All readers get the same Examples, in four files in the page cache, and no worker reads. Each run is a process of its
own, imports do not count, and rounds are interleaved. Rates are rows in a second of processor time, of all threads.

- "epoch 1" is from opening with an empty cache to the last batch of 64; "epoch 2" is the next pass. headrace and Grain
  shuffle all samples; the package tfrecord has a buffer of 1,000.
- "rows" is the rate of 2,000 single samples by random number after epoch 2; a file of TFRecord has no such access.
- "x" is the ratio of the medians to those of the package tfrecord.
- Before the rounds each reader's values are compared with those that were written.
- Grain's source gives bytes, which protobuf parses here, as in the package tfrecord.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SETS = {'text': 30_000, 'tokens': 4_000, 'images': 2_000}
FILES, BATCH, ROWS = 4, 64, 2_000
TYPES = {
    'text': {'id': 'int64', 'text': 'bytes'},
    'tokens': {'tokens': 'ndarray:int64'},
    'images': {'image': 'bytes', 'label': 'int64'},
}
READERS = ('tfrecord', 'headrace', 'headrace, types given', 'grain')


def samples(kind: str) -> Iterator[dict[str, Any]]:
    rng = random.Random(7)
    words = ['word', 'token', 'sample', 'shard', 'epoch', 'batch', 'stream', 'cache', 'index', 'order']
    tokens = np.random.default_rng(7)
    for number in range(SETS[kind]):
        if kind == 'text':
            yield {'id': number, 'text': ' '.join(rng.choices(words, k=60)).encode()}
        elif kind == 'tokens':
            yield {'tokens': tokens.integers(0, 128_000, 2048)}
        else:
            yield {'image': rng.randbytes(50_000), 'label': number}


def write(folder: Path, kind: str) -> None:
    import tfrecord
    from array_record.python.array_record_module import ArrayRecordWriter
    from tfrecord.reader import tfrecord_iterator

    for name in ('tfrecord', 'array'):
        (folder / name).mkdir(parents=True)
    rows, each = samples(kind), SETS[kind] // FILES
    for number in range(FILES):
        path = str(folder / 'tfrecord' / f'a.tfrecord-{number:05}-of-{FILES:05}')
        writer = tfrecord.TFRecordWriter(path)
        for _, row in zip(range(each), rows, strict=False):
            writer.write({name: (value, 'byte' if isinstance(value, bytes) else 'int') for name, value in row.items()})
        writer.close()
        array = ArrayRecordWriter(str(folder / 'array' / f'{number}.array_record'), 'group_size:1')
        for record in tfrecord_iterator(path):
            array.write(bytes(record))
        array.close()


def parse(record: bytes) -> dict[str, Any]:
    from tfrecord.example_pb2 import Example
    from tfrecord.reader import extract_feature_dict

    return extract_feature_dict(Example.FromString(record).features, None, {})


def stack(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: [row[name] for row in rows] if isinstance(value, bytes) else np.stack([row[name] for row in rows])
        for name, value in rows[0].items()
    }


def open_headrace(folder: Path, cache: str, options: dict[str, Any]) -> tuple[Iterable[Any], Callable[[int], Any]]:
    from headrace import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        remote=str(folder / 'tfrecord'), local=cache, format='tfrecord', format_options=options, batch_size=BATCH,
        shuffle=True,
    )  # fmt: skip
    return StreamingDataLoader(dataset, batch_size=BATCH), dataset.__getitem__


def open_tfrecord(folder: Path) -> tuple[Iterable[Any], None]:
    from tfrecord.torch.dataset import TFRecordDataset
    from torch.utils.data import ChainDataset, DataLoader

    files = [TFRecordDataset(str(p), None, shuffle_queue_size=1000) for p in sorted((folder / 'tfrecord').iterdir())]
    return DataLoader(ChainDataset(files), batch_size=BATCH, collate_fn=stack), None


def open_grain(folder: Path) -> tuple[Iterable[Any], Callable[[int], Any]]:
    import grain

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, (folder / 'array').iterdir())))
    data = grain.MapDataset.source(source).shuffle(seed=1).map(parse)
    return data.batch(BATCH, drop_remainder=False, batch_fn=stack), lambda number: parse(source[number])


def opened(reader: str, folder: Path, kind: str, cache: str) -> tuple[Iterable[Any], Callable[[int], Any] | None]:
    if reader == 'tfrecord':
        return open_tfrecord(folder)
    if reader == 'grain':
        return open_grain(folder)
    return open_headrace(folder, cache, {'features': TYPES[kind]} if 'types' in reader else {})


def run(reader: str, folder: Path, kind: str) -> dict[str, float]:
    import tfrecord.torch  # noqa: F401

    import headrace.dataset
    import headrace.sources.tfrecord  # noqa: F401

    if reader == 'grain':
        import grain  # noqa: F401
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        begin = time.process_time()
        data, row = opened(reader, folder, kind, cache)
        for epoch in ('epoch 1', 'epoch 2'):
            count = sum(len(next(iter(batch.values()))) for batch in data)
            found[epoch] = SETS[kind] / (time.process_time() - begin)
            assert count >= SETS[kind]
            begin = time.process_time()
        if row is not None:
            numbers = random.Random(3).choices(range(SETS[kind]), k=ROWS)
            begin = time.process_time()
            for number in numbers:
                row(number)
            found['rows'] = ROWS / (time.process_time() - begin)
    return found


def check(reader: str, folder: Path, kind: str) -> None:
    """Compare the values of an epoch, in any order, with those that were written."""

    def plain(row: dict[str, Any]) -> str:
        return repr(sorted((name, np.asarray(value).ravel().tolist()) for name, value in row.items()))

    with tempfile.TemporaryDirectory() as cache:
        data, _ = opened(reader, folder, kind, cache)
        names = list(TYPES[kind])
        found = {
            plain(dict(zip(names, row, strict=True))) for b in data for row in zip(*(b[n] for n in names), strict=True)
        }
    assert found == {plain(row) for row in samples(kind)}, (reader, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('rounds', nargs='?', type=int, default=5)
    parser.add_argument('--sets', nargs='+', default=list(SETS), choices=SETS)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--run', nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        what, reader, folder, kind = given.run
        result = run(reader, Path(folder), kind) if what == 'run' else check(reader, Path(folder), kind)
        print(json.dumps(result))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for kind in given.sets:
            folder = Path(root) / kind
            write(folder, kind)

            def process(what: str, reader: str, folder: Path = folder, kind: str = kind) -> Any:
                command = [sys.executable, '-W', 'ignore', __file__, '--run', what, reader, str(folder), kind]
                done = subprocess.run(command, check=False, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f'{what} {reader}: {done.stderr[-2000:]}')
                return json.loads(done.stdout.splitlines()[-1])

            for reader in READERS:
                process('check', reader)
            runs = [{reader: process('run', reader) for reader in READERS} for _ in range(given.rounds)]
            figures[kind] = {
                reader: {key: statistics.median(one[reader][key] for one in runs) for key in runs[0][reader]}
                for reader in READERS
            }
            report(kind, figures[kind])
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


def report(kind: str, medians: dict[str, dict[str, float]]) -> None:
    print(f'\n| {kind}, rows/s | epoch 1 | x | epoch 2 | x | rows |\n|---|---|---|---|---|---|', flush=True)
    for reader, one in medians.items():
        cells = [f'{one[e]:,.0f} | {one[e] / medians["tfrecord"][e]:.2f}' for e in ('epoch 1', 'epoch 2')]
        rows = f'{one["rows"]:,.0f}' if 'rows' in one else 'none'
        print(f'| {reader} | {" | ".join(cells)} | {rows} |', flush=True)


if __name__ == '__main__':
    main()
