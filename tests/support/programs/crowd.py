"""A program of the crowd test: processes that construct datasets over one cache folder, and have every shard fetched.

usage: crowd.py REMOTE LOCAL LOG COUNT SECONDS DATASETS HANG_FROM

They start at the same time, as copies of this process: each has what it imported, and nothing else.
"""

from __future__ import annotations

import os
import sys
import time
from typing import BinaryIO

from headrace import StreamingDataset
from headrace.storage import StoreOptions, register_store
from headrace.storage.stores.local import LocalStore


class LoggedStore(LocalStore):
    """A folder that writes down what is read from it, at a chosen speed."""

    log = ''
    seconds = 0.0
    hang_from = 0
    """Line of the log from which on nothing comes any more, until the program is killed; 0: all comes."""

    def get(self, key: str, out: BinaryIO, **options: object) -> None:
        line = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(line, f'{key}\n'.encode())
        os.close(line)
        with open(self.log) as log:
            is_hanging = 0 < self.hang_from <= len(log.readlines())
        time.sleep(1000 if is_hanging else self.seconds)
        super().get(key, out, **options)  # type: ignore[arg-type]


def open_logged(url: str, options: StoreOptions) -> LoggedStore:
    return LoggedStore(url.removeprefix('logged://'))


def main() -> None:
    remote, local, LoggedStore.log, count, seconds, datasets, hang_from = sys.argv[1:]
    LoggedStore.seconds, LoggedStore.hang_from = float(seconds), int(hang_from)
    register_store('logged', open_logged)
    reader, writer = os.pipe()
    children: list[int] = []
    for _ in range(int(count)):
        if not (child := os.fork()):
            os.close(writer)
            os.read(reader, 1)  # until all are there
            read(remote, local, int(datasets))
            return
        children.append(child)
    print('pids', *children, flush=True)
    os.close(writer)
    sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))


def read(remote: str, local: str, datasets: int) -> None:
    for _ in range(datasets):
        dataset = StreamingDataset(remote=f'logged://{remote}', local=local, batch_size=4, shuffle=True)
        print('made', flush=True)
    for shard in range(dataset.num_shards):
        dataset.prepare_shard(shard)
    ids = sorted(dataset[i]['id'] for i in range(dataset.num_samples))
    assert ids == list(range(dataset.num_samples))
    print('read', flush=True)


if __name__ == '__main__':
    main()
