"""Memory, descriptors, threads and maps of the trainer's process and its workers, after each epoch.

    python benchmarks/memory.py [--shards 100000] [--workers 16] [--epochs 3] [--limit none,0.1] [--json OUT] ...

A data set of many tiny shards comes from a store that makes their equal bytes in memory. So the figures are those of
the bookkeeping, and of the system's charge to a process for mapped files. Each case is a separate
process with an empty cache folder, and a real loader:

- without a limit, so that the cache holds every shard after the first epoch;
- with a `cache_limit` of a tenth of the data, which is counted as the files' sizes, so that shards are evicted and
  fetched anew in each epoch.

The figures are taken at the last batch of each epoch, when all workers are alive: from ``/proc/PID/smaps_rollup`` the
resident set (RSS), the proportional one (PSS, where a page that n processes share counts 1/n for each) and the unique
one (USS: private pages, which the end of the process would give back), and the numbers of descriptors, threads and
maps. "file" is the part of the USS that is a mapped file's, which the system takes back when it needs the memory. Of
the workers, the table has the mean and the largest. "peak" is the largest RSS that a process ever had (``VmHWM``).

It says "flat" where neither the parent's USS without files nor the workers' mean grows by more than a MiB and a
hundredth from the end of the second epoch to the end of the last, and descriptors, threads and maps do not either. What
came from the first epoch to the second is said beside it: malloc keeps for itself what the order of the first pass
took, once it is freed, and pages that a fork shares with its parent become its own when they are first written to.

With 100,000 shards of 2 samples and 16 workers on 2 busy cores the first case takes 4 minutes. The second fetches each
shard once or twice in each epoch, at 4 ms each, most of which is locks and file names: some 30 minutes.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MIB = 1 << 20
SLACK = 1 * MIB
SHARE = 0.01


# -- the data ------------------------------------------------------------------------------------------------------


@dataclass
class MadeStore:
    """A store of shards that are all alike, and of their index. Picklable: a file beside it holds both."""

    url: str

    def __post_init__(self) -> None:
        folder = Path(self.url.partition('://')[2])
        self._shard = (folder / 'shard').read_bytes()
        self._index = folder / 'index.json'

    def _bytes(self, key: str) -> bytes:
        return self._index.read_bytes() if key == 'index.json' else self._shard

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        del etag
        data = self._bytes(key)
        out.write(data[offset : None if size is None else offset + size])
        return '1'

    def head(self, key: str) -> Any:
        from headrace.storage import ObjectInfo

        return ObjectInfo(key, len(self._bytes(key)), '1')

    def _not_needed(self, *_: Any, **__: Any) -> Any:
        raise io.UnsupportedOperation

    put = list = delete = _not_needed


def write(folder: Path, shards: int, samples: int, *, hashed: bool) -> int:
    """Write one shard's bytes, and the index of many like it; returns the bytes of a shard."""
    from headrace import MDSWriter

    with MDSWriter(
        out=str(folder / 'one'), columns={'id': 'int', 'row': 'ndarray:int32:16'}, hashes=['sha1'] if hashed else None
    ) as writer:
        for number in range(samples):
            writer.write({'id': number, 'row': np.full(16, number, np.int32)})
    index = json.loads((folder / 'one' / 'index.json').read_text())
    (entry,) = index['shards']
    (folder / 'shard').write_bytes((folder / 'one' / entry['raw_data']['basename']).read_bytes())
    entries = [
        {**entry, 'raw_data': {**entry['raw_data'], 'basename': f'shard.{number:06}.mds'}} for number in range(shards)
    ]
    (folder / 'index.json').write_text(json.dumps({**index, 'shards': entries}))
    return int(entry['raw_data']['bytes'])


# -- what processes take -------------------------------------------------------------------------------------------


def measure(pid: int) -> dict[str, int]:
    """The memory of a process now."""
    root = Path('/proc', str(pid))
    rollup: dict[str, int] = {}
    for line in (root / 'smaps_rollup').read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        rollup[name[:-1]] = int(value) * 1024
    status = dict(line.split(':', 1) for line in (root / 'status').read_text().splitlines())
    uss = rollup['Private_Clean'] + rollup['Private_Dirty']
    # Pages of files that nobody writes to are clean; anonymous ones are dirty.
    return {
        'rss': rollup['Rss'],
        'pss': rollup['Pss'],
        'uss': uss,
        'file': rollup['Private_Clean'],
        'peak': int(status['VmHWM'].split()[0]) * 1024,
        'descriptors': sum(1 for _ in (root / 'fd').iterdir()),
        'threads': sum(1 for _ in (root / 'task').iterdir()),
        'maps': len((root / 'maps').read_text().splitlines()),
    }


def take() -> dict[str, Any]:
    """The memory of this process and its workers now."""
    workers = [measure(child.pid) for child in multiprocessing.active_children() if child.pid]
    return {'parent': measure(os.getpid()), 'workers': workers}


# -- one case ------------------------------------------------------------------------------------------------------


def run_case(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Read all epochs; prints a line of JSON for each."""
    import torch

    from headrace import StreamingDataLoader, StreamingDataset
    from headrace.storage import register_store

    torch.set_num_threads(1)
    size = int((folder / 'shard').stat().st_size)
    limit = None if arguments.limit == 'none' else int(float(arguments.limit) * arguments.shards * size)
    if limit is not None:
        limit += (folder / 'index.json').stat().st_size  # it counts, and stays
    register_store('made', lambda url, _: MadeStore(url))
    before = take()
    begin = time.perf_counter()
    dataset = StreamingDataset(
        remote=f'made://{folder}',
        local=str(folder / 'cache'),
        shuffle=True,
        batch_size=arguments.batch_size,
        cache_limit=limit,
        validate_hash='sha1' if arguments.hashed else None,
    )
    loader = StreamingDataLoader(
        dataset, num_workers=arguments.workers, persistent_workers=arguments.persistent == 'yes'
    )
    print(json.dumps({'epoch': 'imports', 'seconds': 0.0, **before}), flush=True)
    print(json.dumps({'epoch': 'dataset', 'seconds': time.perf_counter() - begin, **take()}), flush=True)
    found: list[dict[str, Any]] = []
    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        last = len(loader)
        for number, _ in enumerate(loader, 1):
            if number == last:
                stats = loader.stats()
                found.append({'epoch': str(epoch), 'seconds': time.perf_counter() - begin, **take()})
                found[-1]['counts'] = [stats.shards_fetched, stats.cache_hits, stats.evictions]
                print(json.dumps(found[-1]), flush=True)
    return found


# -- tables --------------------------------------------------------------------------------------------------------


def mib(count: float) -> str:
    return f'{count / MIB:.1f}'


def pair(workers: list[dict[str, int]], name: str, *, as_bytes: bool = True) -> str:
    values = [worker[name] for worker in workers]
    if not values:
        return ''
    mean, most = statistics.mean(values), max(values)
    return f'{mib(mean)} / {mib(most)}' if as_bytes else f'{mean:.0f} / {most}'


def print_table(lines: list[dict[str, Any]]) -> None:
    print('| | seconds | USS | file | PSS | RSS | peak | descriptors | threads | maps |')
    print('|---|---|---|---|---|---|---|---|---|---|')
    for line in lines:
        parent, workers = line['parent'], line['workers']
        cells = [mib(parent[name]) for name in ('uss', 'file', 'pss', 'rss', 'peak')]
        cells += [str(parent[name]) for name in ('descriptors', 'threads', 'maps')]
        print(f'| {line["epoch"]}: parent | {line["seconds"]:.0f} | {" | ".join(cells)} |')
        if workers:
            cells = [pair(workers, name) for name in ('uss', 'file', 'pss', 'rss', 'peak')]
            cells += [pair(workers, name, as_bytes=False) for name in ('descriptors', 'threads', 'maps')]
            print(f'| {line["epoch"]}: {len(workers)} workers | | {" | ".join(cells)} |')
        if 'counts' in line:
            print(f'| | | {line["counts"]} fetched, hits, evicted | | | | | | | |')


def growth(lines: list[dict[str, Any]]) -> list[str]:
    """Figures that grew from the end of the second epoch to that of the last; empty: all are flat."""
    epochs = [line for line in lines if line['epoch'].isdigit()][1:]
    found: list[str] = []
    for who in ('parent', 'workers'):
        first, last = ([line[who]] if who == 'parent' else line[who] for line in (epochs[0], epochs[-1]))
        for name in ('uss', 'descriptors', 'threads', 'maps'):
            one, other = (statistics.mean(_own(each, name) for each in line) for line in (first, last))
            if name == 'uss':
                if other - one > SLACK + SHARE * one:
                    found.append(f'{who}: USS without files {mib(one)} -> {mib(other)} MiB')
            elif other - one > max(2, SHARE * one):
                found.append(f'{who}: {name} {one:.0f} -> {other:.0f}')
    return found


def step(lines: list[dict[str, Any]]) -> str:
    """The growth in the second epoch."""
    first, second = ([_own(worker, 'uss') for worker in line['workers']] for line in lines if line['epoch'] in '01')
    return f'{mib(statistics.mean(second) - statistics.mean(first))} MiB a worker from the first epoch to the second'


def _own(process: dict[str, int], name: str) -> int:
    return process['uss'] - process['file'] if name == 'uss' else process[name]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--shards', type=int, default=100_000)
    parser.add_argument('--samples', type=int, default=2, help='of a shard')
    parser.add_argument('--batch-size', type=int, default=64)
    parser.add_argument('--workers', type=int, default=16)
    parser.add_argument('--epochs', type=int, default=3, help='at least 3')
    parser.add_argument('--limit', default='none,0.1', help='cache limits as shares of the data, or none')
    parser.add_argument('--persistent', default='yes', choices=['yes', 'no'], help='workers that outlive an epoch')
    parser.add_argument('--hashed', action='store_true', help='with checksums, which are checked')
    parser.add_argument('--json', help='a file to write all figures to')
    parser.add_argument('--case', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        run_case(arguments, Path(arguments.case))
        return
    everything: dict[str, Any] = {}
    for limit in arguments.limit.split(','):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), arguments.shards, arguments.samples, hashed=arguments.hashed)
            command = [sys.executable, __file__, *sys.argv[1:], '--limit', limit, '--case', folder]
            out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        lines = [json.loads(line) for line in out.splitlines()]
        everything[limit] = lines
        title = 'no limit' if limit == 'none' else f'a limit of {float(limit):.0%} of the data'
        print(
            f'\n{arguments.shards:,} shards of {arguments.samples} samples, {arguments.workers} workers, {title}; MiB\n'
        )
        print_table(lines)
        grown = growth(lines)
        print(f'\n{"flat" if not grown else "NOT FLAT: " + "; ".join(grown)}; {step(lines)}', flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(everything))


if __name__ == '__main__':
    main()
