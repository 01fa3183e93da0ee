"""A program whose process group gets signals, which its workers leave to it.

usage: python signalled.py DATA METHOD StreamingDataLoader|DataLoader persistent|- left|alive

It sends SIGTERM and SIGINT to its group after a batch of each worker, and reads all the others. It prints the number of
samples. Its loader is `left` before the program ends, or still has its workers then.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch.utils.data

from headrace import StreamingDataLoader, StreamingDataset


def main() -> object:
    data, method, kind, persistent, end = sys.argv[1:]
    assert os.getpgid(0) == os.getpid(), 'start it in a process group of its own'
    caught: list[int] = []
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda number, _: caught.append(number))
    dataset = StreamingDataset(local=data, batch_size=2)
    loader_class: Any = StreamingDataLoader if kind == 'StreamingDataLoader' else torch.utils.data.DataLoader
    loader = loader_class(
        dataset,
        batch_size=2,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=persistent == 'persistent',
        prefetch_factor=2,
    )
    iterator = iter(loader)
    samples = len(next(iterator)['id']) + len(next(iterator)['id'])
    os.killpg(0, signal.SIGTERM)
    os.killpg(0, signal.SIGINT)
    samples += sum(len(batch['id']) for batch in iterator)
    if persistent == 'persistent':
        samples += sum(len(batch['id']) for batch in loader)
    print(samples, sorted({signal.Signals(number).name for number in caught}))
    if end == 'alive':
        iterator = iter(loader)
        next(iterator)
        return iterator
    return None


if __name__ == '__main__':
    kept = main()
