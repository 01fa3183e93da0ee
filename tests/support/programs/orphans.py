"""A program of the kill test: a rank whose workers are in the middle of something, for ever.

usage: python orphans.py REMOTE LOCAL WORKERS waiting|sending StreamingDataLoader|DataLoader METHOD

It prints the ids of its workers, and waits for its end.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any, BinaryIO

import torch.utils.data

from headrace import StreamingDataLoader, StreamingDataset
from headrace.storage import StoreOptions, register_store
from headrace.storage.stores.local import LocalStore

LARGE = 1 << 18  # bytes; a pipe takes a quarter of that


class DeadStore(LocalStore):
    """A folder whose shards never come."""

    def get(self, key: str, out: BinaryIO, **how: Any) -> str:
        """As `Store.get`."""
        if key != 'index.json':
            time.sleep(1000)
        return super().get(key, out, **how)


def open_dead(url: str, _: StoreOptions) -> DeadStore:
    return DeadStore(url.removeprefix('dead://'))


class Large(StreamingDataset):
    """Samples that are too large for a pipe."""

    def __getitem__(self, at: Any) -> Any:
        """A sample."""
        return {'id': at, 'text': 'x' * LARGE}


def begin(log: str, _: int) -> None:
    """Note a worker."""
    register_store('dead', open_dead)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f'{os.getpid()}\n'.encode())
    os.close(handle)


def main() -> None:
    remote, local, workers, doing, kind, method = sys.argv[1:]
    register_store('dead', open_dead)
    if doing == 'waiting':
        dataset = StreamingDataset(remote=f'dead://{remote}', local=local, batch_size=2)
    else:
        dataset = Large(remote=remote, local=local, batch_size=2)
    loader_class: Any = StreamingDataLoader if kind == 'StreamingDataLoader' else torch.utils.data.DataLoader
    loader = loader_class(
        dataset,
        batch_size=2,
        num_workers=int(workers),
        multiprocessing_context=method,
        worker_init_fn=partial(begin, f'{local}.workers'),
    )
    iterator = iter(loader)
    next(iterator)
    time.sleep(1000)


if __name__ == '__main__':
    main()
