"""How long it takes to open the index of many shards, beside `json.loads` alone.

Medians of interleaved rounds, one fresh process per contender and round; files are in the page cache. "parse" is all
that a stream does (read, digest, check), "dataset" is a StreamingDataset made where the index is in the cache.
"msgspec", where that package is installed, decodes the file into typed structs. Memory is what the process has more
than before: at its peak, and afterwards.

usage: python benchmarks/index.py [ROUNDS] [SHARDS]
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace import StreamingDataset
from headrace.format import IndexFile

INDEX = 'index.json'


def make(folder: Path, shards: int, *, compressed: bool) -> None:
    """Write an index as writers do: shards stored as they are, or compressed and with a digest of each file."""
    entries: list[dict[str, Any]] = []
    for i in range(shards):
        name = f'shard.{i:06}.mds'
        digest = hashlib.sha1(name.encode()).hexdigest()
        hashes = {'sha1': digest} if compressed else {}
        entry = {
            'column_encodings': ['ndarray:int32:2048'],
            'column_names': ['tokens'],
            'column_sizes': [8192],
            'compression': 'zstd' if compressed else None,
            'format': 'mds',
            'hashes': list(hashes),
            'raw_data': {'basename': name, 'bytes': 67_000_000 + i % 977, 'hashes': hashes},
            'samples': 4000 + i % 7,
            'size_limit': 1 << 26,
            'version': 2,
            'zip_data': None,
        }
        if compressed:
            entry['zip_data'] = {'basename': f'{name}.zstd', 'bytes': 31_000_000 + i % 1013, 'hashes': hashes}
        entries.append(entry)
    folder.mkdir()
    (folder / INDEX).write_text(json.dumps({'shards': entries, 'version': 2}, sort_keys=True))


def loads(folder: Path) -> object:
    return json.loads((folder / 'cache' / INDEX).read_bytes())


def parse(folder: Path) -> object:
    index = IndexFile('index', allow_unsafe_types=False)
    index.read(folder / 'cache' / INDEX)
    return index


def dataset(folder: Path) -> object:
    return StreamingDataset(remote=str(folder), local=str(folder / 'cache'), batch_size=1, shuffle=True)


def typed_decoder() -> Callable[[bytes], object] | None:
    """msgspec's. It checks types and nothing else: neither names, sizes and encodings, nor permission for pickles."""
    if find_spec('msgspec') is None:
        return None
    msgspec = import_module('msgspec')
    file = msgspec.defstruct('File', [('basename', str), ('bytes', int), ('hashes', dict[str, str])])
    fields = [
        ('column_encodings', list[str]),
        ('column_names', list[str]),
        ('column_sizes', list[int | None]),
        ('compression', str | None),
        ('format', str),
        ('hashes', list[str]),
        ('raw_data', file),
        ('samples', int),
        ('size_limit', int | None),
        ('version', int),
        ('zip_data', file | None),
    ]
    index = msgspec.defstruct('Index', [('shards', list[msgspec.defstruct('Shard', fields)]), ('version', int)])
    return msgspec.json.Decoder(index).decode


decode_typed = typed_decoder()


def with_msgspec(folder: Path) -> object:
    assert decode_typed is not None
    return decode_typed((folder / 'cache' / INDEX).read_bytes())


CONTENDERS: dict[str, Callable[[Path], object]] = {
    'json.loads': loads,
    'parse': parse,
    **({} if decode_typed is None else {'msgspec': with_msgspec}),
    'dataset': dataset,
}


def memory(field: str) -> float:
    """MiB of this process, as Linux counts them."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def measure(contender: str, folder: Path) -> None:
    before = memory('VmRSS')
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = CONTENDERS[contender](folder)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    print(seconds, cpu, memory('VmHWM') - before, memory('VmRSS') - before)
    del result


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    shards = int(sys.argv[2]) if len(sys.argv) > 2 else 250_000
    with tempfile.TemporaryDirectory() as scratch:
        for compressed in (False, True):
            folder = Path(scratch) / ('compressed' if compressed else 'plain')
            make(folder, shards, compressed=compressed)
            dataset(folder)  # fetches the index
            size = (folder / 'cache' / INDEX).stat().st_size
            print(f'{shards:,} shards, {folder.name}: {size / 1e6:.0f} MB')
            runs: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
            for _ in range(rounds):
                for name, found in runs.items():
                    command = [sys.executable, __file__, '--measure', name, str(folder)]
                    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    found.append([float(number) for number in output.split()])
            for name, found in runs.items():
                seconds, cpu, peak, after = (statistics.median(column) for column in zip(*found, strict=True))
                print(f'{name:>10} {seconds:6.3f} s, {cpu:6.3f} s CPU, {peak:5.0f} MiB at the peak, {after:5.0f} after')


if __name__ == '__main__':
    if sys.argv[1:2] == ['--measure']:
        measure(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
