"""A run with spawned workers whose threads are in C++ code when they end.

usage: python busy_workers.py DATA
"""

from __future__ import annotations

import sys
import threading

import torch

from headrace import StreamingDataLoader, StreamingDataset


def share() -> None:
    while True:
        torch.zeros(1000).share_memory_()


def begin(worker: int) -> None:
    for _ in range(8):
        threading.Thread(target=share, daemon=True).start()


if __name__ == '__main__':
    dataset = StreamingDataset(local=sys.argv[1], batch_size=4)
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context='spawn', worker_init_fn=begin)
    for _ in range(2):
        print(len(list(loader)))
