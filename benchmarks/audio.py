"""Random crops of sound: headrace beside a DataLoader over files that calls soundfile and soxr.

    python -m benchmarks.audio [--clips 384] [--rounds 5] [--workers 0 2]

Clips are stereo, 44.1 kHz and 12 seconds long: tones and noise. Both contenders read the same bytes from the page
cache, cut 10 seconds out at random, and give batches of 16 float32 tensors at 16 kHz, mono. One process has all
loaders, with persistent workers. After a first pass, timed passes are interleaved. CPU is that of the process and
its workers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.images import cpu

BATCH = 16
RATE, SECONDS = 16_000, 10
"""Of the tensors."""


def make_clips(folder: Path, kind: str, count: int) -> None:
    import soundfile

    at = np.arange(12 * 44_100) / 44_100
    rng = np.random.default_rng(0)
    for number in range(count):
        tones = [0.3 * np.sin(2 * np.pi * (200 + 7 * number + c) * at) for c in range(2)]
        values = np.stack(tones, axis=1) + rng.normal(0, 0.02, (len(at), 2))
        soundfile.write(folder / f'{number:05}.{kind}', values, 44_100)


class Files(torch.utils.data.Dataset[Any]):
    """The files of a folder, decoded as most programs do."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, at: int) -> torch.Tensor:
        import soundfile
        import soxr

        with soundfile.SoundFile(self._paths[at]) as file:
            frames = SECONDS * file.samplerate
            file.seek(random.randrange(file.frames - frames + 1))
            values = file.read(frames, dtype='float32', always_2d=True).mean(axis=1)
            return torch.from_numpy(soxr.resample(values, file.samplerate, RATE))[None]


def loaders_of(folder: Path, shards: Path, workers: int) -> dict[str, Any]:
    from headrace import AudioTensor, MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(shards), columns={'audio': 'bytes'}) as writer:
        for path in sorted(folder.iterdir()):
            writer.write({'audio': path.read_bytes()})
    decode = {'audio': AudioTensor(sample_rate=RATE, seconds=SECONDS, crop='random')}
    dataset = StreamingDataset(local=str(shards), shuffle=True, batch_size=BATCH, decode=decode)
    options: dict[str, Any] = {'num_workers': workers, 'persistent_workers': workers > 0}
    return {
        'headrace': StreamingDataLoader(dataset, **options),
        'files': torch.utils.data.DataLoader(Files(folder), batch_size=BATCH, shuffle=True, **options),
    }


def one_pass(loader: Any) -> int:
    count = 0
    for batch in loader:
        values = batch['audio'] if isinstance(batch, dict) else batch
        assert tuple(values.shape[1:]) == (1, RATE * SECONDS), values.shape
        count += len(values)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--clips', type=int, default=384)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--workers', type=int, nargs='+', default=[0, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print('| clips | workers | files, clips/s | headrace, clips/s | ratio | files, CPU ms | headrace, CPU ms |')
    print('|---|---|---|---|---|---|---|')
    for kind in ('wav', 'flac', 'mp3'):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root, 'files')
            folder.mkdir()
            make_clips(folder, kind, arguments.clips)
            for workers in arguments.workers:
                loaders = loaders_of(folder, Path(root, f'mds{workers}'), workers)
                found: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
                for number in range(arguments.rounds + 1):  # the first round is not counted
                    for name in sorted(loaders, reverse=number % 2 == 0):
                        start, used = time.perf_counter(), cpu()
                        passed = one_pass(loaders[name])
                        if number:
                            found[name].append(((time.perf_counter() - start) / passed, (cpu() - used) / passed))
                ratio = statistics.median(f[0] / h[0] for f, h in zip(found['files'], found['headrace'], strict=True))
                seconds, used_by = (
                    {name: statistics.median(values[part] for values in times) for name, times in found.items()}
                    for part in (0, 1)
                )
                rates = ' | '.join(f'{1 / seconds[name]:,.0f}' for name in ('files', 'headrace'))
                costs = ' | '.join(f'{1000 * used_by[name]:.2f}' for name in ('files', 'headrace'))
                print(f'| {kind} | {workers} | {rates} | {ratio:.2f} x | {costs} |', flush=True)


if __name__ == '__main__':
    main()
