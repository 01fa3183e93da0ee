"""A run of some epochs in a process of its own, and what it and its workers take at the end of each, as JSON.

usage: python long_run.py REMOTE CACHE WORKERS EPOCHS LIMIT PERSISTENT

LIMIT is a share of the data, or 0 for none.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path

from headrace import StreamingDataLoader, StreamingDataset
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.reading import batch_reader
from headrace.storage.cache import lease_cache
from headrace.storage.transfer import download as transfer
from tests.support.programs.waiting import until

# So that the first epoch has as many as there ever are, and one moment about as many as another.
lease_cache.MAPPED_SHARDS = 256
lease_cache.LEASED_SHARDS = 4
batch_reader.prefetch_limits = lambda *asked: replace(prefetch_limits(*asked), threads=2)
transfer.REQUESTS = 1  # type: ignore[misc]


def uses(pid: int, cache: str) -> dict[str, int]:
    """The memory of a process alone, without pages of files, which the system takes back.

    It is taken when the process has no file of the cache open. Current fetches and cached leases are released soon.
    """
    root = Path('/proc', str(pid))
    opened: list[str] = []

    def has_none_of_the_cache() -> bool:
        opened[:] = descriptors(pid)
        return not any(target.startswith(f'{cache}/') for target in opened)

    until(has_none_of_the_cache)
    fields = dict(line.split()[:2] for line in (root / 'smaps_rollup').read_text().splitlines()[1:])
    return {
        'bytes': int(fields['Private_Dirty:']) * 1024,
        'descriptors': len(opened),
        'threads': sum(1 for _ in (root / 'task').iterdir()),
        'maps': len((root / 'maps').read_text().splitlines()),
    }


def descriptors(pid: int) -> list[str]:
    """Open descriptors of a process that count.

    A new worker's pipes do not: it has whichever of the last epoch's are still open when it is forked.
    """
    targets: list[str] = []
    for descriptor in Path('/proc', str(pid), 'fd').iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed just now
            targets.append(os.readlink(descriptor))
    return [target for target in targets if pid == os.getpid() or not target.startswith('pipe:')]


def main(remote: Path, cache: str, workers: int, epochs: int, limit: float, *, persistent: bool) -> None:
    size = sum(path.stat().st_size for path in remote.glob('*.mds'))
    dataset = StreamingDataset(
        remote=str(remote),
        local=cache,
        shuffle=True,
        num_canonical_nodes=1,
        batch_size=32,
        cache_limit=int(limit * size) + (remote / 'index.json').stat().st_size if limit else None,
        validate_hash='sha1',
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=persistent, max_epochs=epochs)
    parent: list[dict[str, int]] = []
    children: list[list[dict[str, int]]] = []
    for _ in range(epochs):
        for number, _batch in enumerate(loader, 1):
            if number == len(loader):
                gc.collect()
                parent.append(uses(os.getpid(), cache))
                children.append([uses(child.pid, cache) for child in multiprocessing.active_children() if child.pid])
    stats = loader.stats()
    found = {'parent': parent, 'workers': children, 'fetched': stats.shards_fetched, 'evicted': stats.evictions}
    print(json.dumps(found))


if __name__ == '__main__':
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
        float(sys.argv[5]),
        persistent=sys.argv[6] == '1',
    )
