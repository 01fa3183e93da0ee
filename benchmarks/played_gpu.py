"""The wait of steps for their batches with and without `device`, on a GPU that is played: real loaders, and a clock.

usage: python -m benchmarks.played_gpu [--rounds 5] [--seconds 3] [--gigabytes 20] [--every 16]

The GPU has two streams. A step takes 1 or 5 ms of the first one, and a copy its bytes at `--gigabytes` per second.
Without `device` the trainer copies on the first stream. The trainer waits for the GPU every 16 steps, or `--every`.
"waits" is the share of the time in which the GPU runs no step. `benchmarks.gpu` measures a real one.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import machine

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset import device as on_device

BATCHES = {'tokens': (16, 'ndarray:int32:2048'), 'images': (64, 'ndarray:uint8:3,224,224')}
SAMPLES = {'tokens': 20_000, 'images': 2_000}
STEPS = (0.001, 0.005)
UNCOUNTED = 16


class PlayedGpu(on_device.GpuCopies):
    """Two streams, each by the time at which its work ends."""

    speed: float
    compute = copies = 0.0

    def __init__(self, gpu: Any) -> None:
        del gpu

    @classmethod
    def seconds(cls, batch: dict[str, Any]) -> float:
        return sum(value.nbytes for value in batch.values()) / cls.speed

    def copy(self, batch: Any) -> tuple[Any, Any]:
        PlayedGpu.copies = max(time.perf_counter(), self.copies) + self.seconds(batch)
        return batch, self.copies

    def receive(self, batch: Any, event: Any) -> None:
        del batch
        PlayedGpu.compute = max(self.compute, event)

    def end(self) -> None: ...


def run(seconds: float) -> None:
    """Queue work of the first stream."""
    PlayedGpu.compute = max(time.perf_counter(), PlayedGpu.compute) + seconds


def synchronize() -> None:
    while time.perf_counter() < PlayedGpu.compute:
        pass


def waiting(loader: StreamingDataLoader, step: float, *, seconds: float, every: int) -> float:
    """The share of the time without a step."""
    count, begin = 0, 0.0
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for number, batch in enumerate(batches):
        if loader.device is None:
            run(PlayedGpu.seconds(batch))
        run(step)
        if not number % every:
            synchronize()
        if number == UNCOUNTED:
            synchronize()
            begin = time.perf_counter()
        elif number > UNCOUNTED:
            count += 1
            if time.perf_counter() - begin > seconds:
                break
    synchronize()
    return 1 - count * step / (time.perf_counter() - begin)


def written(load: str, folder: Path) -> Path:
    rng = np.random.default_rng(0)
    with MDSWriter(out=str(folder / load), columns={load: BATCHES[load][1]}) as writer:
        for _ in range(SAMPLES[load]):
            shape = (2048,) if load == 'tokens' else (3, 224, 224)
            writer.write({load: rng.integers(0, 255, shape).astype(BATCHES[load][1].split(':')[1])})
    return folder / load


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.played_gpu')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=3)
    parser.add_argument('--gigabytes', type=float, default=20)
    parser.add_argument('--every', type=int, default=16)
    options = parser.parse_args()
    PlayedGpu.speed, on_device.GpuCopies = options.gigabytes * 1e9, PlayedGpu
    print('| batches | workers | step | waits | with `device` |\n|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as folder:
        for load, (rows, _) in BATCHES.items():
            path = written(load, Path(folder))
            for workers, step in itertools.product((0, 2), STEPS):
                found: dict[str | None, list[float]] = {None: [], 'cuda': []}
                for device in [*found] * options.rounds:
                    dataset = StreamingDataset(local=str(path), batch_size=rows, shuffle=True)
                    loader = StreamingDataLoader(dataset, num_workers=workers, device=device)
                    found[device].append(waiting(loader, step, seconds=options.seconds, every=options.every))
                plain, ahead = (f'{100 * statistics.median(shares):.1f} %' for shares in found.values())
                print(f'| {load} | {workers} | {1000 * step:.0f} ms | {plain} | {ahead} |', flush=True)
    print(f'\n{machine("torch")}. Medians of {options.rounds} rounds.')


if __name__ == '__main__':
    main()
