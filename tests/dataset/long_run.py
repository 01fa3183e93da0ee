"""A run of some epochs in a process of its own, and what it and its workers take at the end of each, as JSON.

usage: python long_run.py REMOTE CACHE WORKERS EPOCHS LIMIT PERSISTENT

LIMIT is a share of the data, or 0 for none.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
from pathlib import Path

from headrace import StreamingDataLoader, StreamingDataset
from headrace.dataset import prefetch
from headrace.storage import keeping, transfer

# So that the first epoch has as many as there ever are, and one moment about as many as another.
keeping.MAPPED_SHARDS = 256
keeping.LEASED_SHARDS = 4
prefetch._THREADS = 2
transfer.REQUESTS = 1  # type: ignore[misc]


def uses(pid: int) -> dict[str, int]:
    """What a process takes of its own; pages of files excepted, which the system takes back."""
    root = Path('/proc', str(pid))
    fields = dict(line.split()[:2] for line in (root / 'smaps_rollup').read_text().splitlines()[1:])
    return {
        'bytes': int(fields['Private_Dirty:']) * 1024,
        'descriptors': sum(map(counts, (root / 'fd').iterdir())),
        'threads': sum(1 for _ in (root / 'task').iterdir()),
        'maps': len((root / 'maps').read_text().splitlines()),
    }


def counts(descriptor: Path) -> bool:
    """Whether to count it: a new worker has whichever pipes of the last epoch's are still open when it is forked."""
    try:
        return descriptor.parts[2] == str(os.getpid()) or not os.readlink(descriptor).startswith('pipe:')
    except FileNotFoundError:  # it was closed just now
        return False


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
                parent.append(uses(os.getpid()))
                children.append([uses(child.pid) for child in multiprocessing.active_children() if child.pid])
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
