"""A program that ends, or whose workers do, while shards are fetched that never come.

usage: python leaving.py REMOTE LOCAL WORKERS METHOD StreamingDataLoader|DataLoader left|alive

Its loader is `left` before the program ends, or still has its workers then. It prints what it has under way.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import torch.utils.data

from headrace import StreamingDataLoader, StreamingDataset
from headrace.storage import StoreOptions, known_schemes, register_store
from headrace.storage.stores.local import LocalStore


class BreakingStore(LocalStore):
    """A folder of whose shards but the first only the beginning comes."""

    def get(self, key: str, out: BinaryIO, **how: Any) -> str:
        """As `Store.get`."""
        if key not in {'index.json', 'shard.00000.mds'}:
            out.write(bytes(100))
            time.sleep(1000)
        return super().get(key, out, **how)


def open_breaking(url: str, _: StoreOptions) -> BreakingStore:
    return BreakingStore(url.removeprefix('breaking://'))


def begin(_: int) -> None:
    """In a worker that was not forked, too."""
    if 'breaking' not in known_schemes():
        register_store('breaking', open_breaking)


def main() -> object:
    remote, local, workers, method, kind, end = sys.argv[1:]
    begin(0)
    dataset = StreamingDataset(remote=f'breaking://{remote}', local=local, batch_size=2)
    loader_class: Any = StreamingDataLoader if kind == 'StreamingDataLoader' else torch.utils.data.DataLoader
    loader = loader_class(
        dataset,
        batch_size=2,
        num_workers=int(workers),
        multiprocessing_context=method if int(workers) else None,
        persistent_workers=end == 'alive' and int(workers) > 0,
        prefetch_factor=1 if int(workers) else None,
        worker_init_fn=begin,
    )
    iterator = iter(loader)
    next(iterator)
    state, until = Path(local, '.headrace'), time.monotonic() + 60
    while not any(path.stat().st_size == 100 for path in state.glob('*.raw')):
        assert time.monotonic() < until, 'nothing is fetched ahead'
        time.sleep(0.01)
    print(*{path.suffix for path in state.iterdir()})
    return iterator if end == 'alive' else None


if __name__ == '__main__':
    kept = main()
