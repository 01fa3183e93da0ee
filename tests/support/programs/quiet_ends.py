"""A program whose forked copies end in the midst of a pass, each as a user's script may: python quiet_ends.py FOLDER.

It prints a line of JSON: by case, the exit status of the copy and what it wrote to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset

kept: list[Any] = []  # what lives until the interpreter ends


def begin(folder: str, workers: int) -> Any:
    dataset = StreamingDataset(remote=f'{folder}/data', local=f'{folder}/cache', batch_size=2, cache_limit=4000)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    batches = iter(loader)
    kept.extend([dataset[0], loader, batches, next(batches)])
    return batches


def end(folder: str, how: str, workers: int) -> None:
    """End in one of the ways, or return, which is the usual one."""
    if how == 'thread':
        is_under_way = threading.Event()

        def run() -> None:
            batches = begin(folder, workers)
            is_under_way.set()
            for _ in range(3):
                next(batches)
            threading.Event().wait()

        threading.Thread(target=run, daemon=True).start()
        is_under_way.wait()
        return
    batches = begin(folder, workers)
    if how == 'sys.exit':
        sys.exit(3)
    if how == 'exception':
        raise ValueError('of the user')
    if how == 'fork':
        child = os.fork()
        if child:
            os.waitpid(child, 0)
    if how == 'lease':
        pool = kept[1].dataset.pool
        kept.append(pool.streams[0].cache.acquire(pool.streams[0].entries[0]))
    if how == 'cycle':
        kept.append({'batches': batches, 'kept': kept})


WAYS = ('return', 'sys.exit', 'exception', 'thread', 'fork', 'lease', 'cycle')
CASES = [*((how, 0) for how in WAYS), *((how, 2) for how in ('return', 'exception', 'thread', 'fork'))]


def main(folder: str) -> None:
    with MDSWriter(out=f'{folder}/data', columns={'id': 'int', 'text': 'str'}, size_limit=600) as writer:
        for number in range(100):
            writer.write({'id': number, 'text': str(number) * 9})
    copies: dict[str, tuple[int, Path]] = {}
    for how, workers in CASES:
        error = Path(folder, f'{how}-{workers}.txt')
        copy = os.fork()
        if not copy:
            os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT), 2)
            end(folder, how, workers)
            return
        copies[f'{how} {workers}'] = copy, error
    ends: dict[str, tuple[int, str]] = {}
    for case, (copy, error) in copies.items():
        status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        ends[case] = status, error.read_text()
    print(json.dumps(ends))


if __name__ == '__main__':
    main(sys.argv[1])
