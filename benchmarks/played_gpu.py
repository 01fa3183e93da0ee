"""The wait of steps for their batches on a GPU that is played: loaders of headrace and its peers, and a clock.

    python -m benchmarks.played_gpu [ROUNDS] [--json OUT]

The GPU has two streams. A step takes 1 or 5 ms of the first one, and a copy its bytes at 20 GB/s. The trainer copies
on the first stream; `headrace-ahead` has `device`, so it copies on the second. The trainer waits for the GPU every 16
steps. A figure is the share of the time in which the GPU runs no step, without the first 8 batches of each epoch.

Tokens are batches of 16 rows of 2,048 int32, images of 64 with 3 x 224 x 224 bytes, shuffled, from the page cache.
`map` is torch's DataLoader over a memory map. Workers are forked, and stay. Each contender runs in a process of its
own, in interleaved rounds. `benchmarks.gpu` measures a real GPU.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.loading.contenders import CONTENDERS, Settings, written
from benchmarks.machine import machine
from benchmarks.rounds import in_rounds

from headrace import StreamingDataLoader
from headrace.dataset import device as on_device

AHEAD = 'headrace-ahead'
PEERS = ('headrace', AHEAD, 'mosaicml-streaming', 'litdata', 'map')
LOADS = ('tokens', 'images')
CASES = {f'{workers} workers, {step} ms': (workers, step / 1000) for workers in (0, 2) for step in (1, 5)}
SPEED = 20e9
"""Bytes per second of copies."""
EVERY = 16
UNCOUNTED = 8
SECONDS = 1


class PlayedGpu(on_device.GpuCopies):
    """Two streams, each by the time at which its work ends."""

    compute = copies = 0.0

    def __init__(self, gpu: Any) -> None:
        del gpu

    def copy(self, batch: Any) -> tuple[Any, Any]:
        PlayedGpu.copies = max(time.perf_counter(), self.copies) + size_of(batch) / SPEED
        return batch, self.copies

    def receive(self, batch: Any, event: Any) -> None:
        del batch
        PlayedGpu.compute = max(self.compute, event)

    def end(self) -> None: ...


def size_of(batch: Any) -> int:
    """Bytes of a batch."""
    return sum(value.nbytes for value in batch.values()) if isinstance(batch, dict) else batch.nbytes


def run_on_gpu(seconds: float) -> None:
    """Queue work of the first stream."""
    PlayedGpu.compute = max(time.perf_counter(), PlayedGpu.compute) + seconds


def synchronize() -> float:
    """The time at which the GPU has done its work."""
    while time.perf_counter() < PlayedGpu.compute:
        pass
    return time.perf_counter()


def waiting(loader: Iterable[Any], step: float) -> float:
    """The share of the time without a step."""
    copies = not (isinstance(loader, StreamingDataLoader) and loader.device)
    count, total = 0, 0.0
    while total < SECONDS:
        begin = 0.0
        for number, batch in enumerate(loader):
            if copies:
                run_on_gpu(size_of(batch) / SPEED)
            run_on_gpu(step)
            if not number % EVERY:
                synchronize()
            if number == UNCOUNTED - 1:
                begin = synchronize()
            elif number >= UNCOUNTED:
                count += 1
                if total + time.perf_counter() - begin > SECONDS:
                    break
        total += synchronize() - begin
    return 1 - count * step / total


def write(root: Path) -> None:
    for name, load in itertools.product(CONTENDERS, LOADS):
        if name in PEERS:
            written(name, load, root)


def run(name: str, root: Path) -> dict[str, float]:
    load, contender = name.split(', ')
    on_device.GpuCopies = PlayedGpu
    ours = 'headrace' if contender == AHEAD else contender
    found: dict[str, float] = {}
    for workers in (0, 2):
        settings = Settings(load, written(ours, load, root), workers, 'fork' if workers else None)
        loader: Any = CONTENDERS[ours].read(settings)
        if contender == AHEAD:
            loader.device = 'cuda'
        for case, (of, step) in CASES.items():
            if of == workers:
                found[case] = 100 * waiting(loader, step)
    return found


if __name__ == '__main__':
    print(f'{machine("torch", "mosaicml-streaming", "litdata")}\n', flush=True)
    names = [', '.join(each) for each in itertools.product(LOADS, PEERS)]
    in_rounds('benchmarks.played_gpu', names, write, run, dict.fromkeys(CASES, '{:.1f} %'), rounds=3)
