"""Accuracy of a small CNN on scikit-learn's digits, with three loaders and five seeds of each.

All read the same PNG files, and train the same model from the same weights. A seed is that of the weights and of the
loader's shuffle. Records are written in a fixed random order, as is usual for shards.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures.digits import BATCH, Digits, Epoch, learn, load
from benchmarks.figures.results import BLUE, GREEN, ORANGE, Made, Result
from benchmarks.machine import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARD = 100
"""Samples of a shard."""
BUFFER = 300
"""Samples of WebDataset's shuffle buffer, a quarter of the data."""


def pngs(train: Digits) -> Iterator[tuple[bytes, int]]:
    from PIL import Image

    for image, label in zip(train.images, train.labels, strict=True):
        data = io.BytesIO()
        Image.fromarray(image).save(data, 'PNG')
        yield data.getvalue(), int(label)


def headrace(folder: Path, train: Digits, seed: int) -> Epoch:
    import torch

    from headrace import MDSWriter, StreamingDataLoader, StreamingDataset

    if not (folder / 'index.json').exists():
        with MDSWriter(out=str(folder), columns={'image': 'png', 'label': 'int'}, size_limit='20kb') as writer:
            for image, label in zip(train.images, train.labels, strict=True):
                from PIL import Image

                writer.write({'image': Image.fromarray(image), 'label': int(label)})

    def collate(samples: list[Any]) -> tuple[Any, Any]:
        images = torch.from_numpy(np.stack([np.array(sample['image']) for sample in samples]))
        return images, torch.tensor([sample['label'] for sample in samples])

    dataset = StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=True, shuffle_seed=seed, remainder='drop')
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate)
    return lambda _: loader


def image_folder(folder: Path, train: Digits, seed: int) -> Epoch:
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.functional import pil_to_tensor

    for number, (data, label) in enumerate(pngs(train)):
        path = folder / str(label) / f'{number:04}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    dataset = ImageFolder(str(folder), transform=lambda image: pil_to_tensor(image)[0])
    loader: Any = DataLoader(
        dataset, BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(seed)
    )
    return lambda _: loader


def webdataset(folder: Path, train: Digits, seed: int) -> Epoch:
    import torch
    import webdataset as wds

    samples = list(pngs(train))
    folder.mkdir(exist_ok=True)
    bounds = [*range(0, len(samples), SHARD), len(samples)]
    for begin, end in pairwise(bounds):
        with tarfile.open(folder / f'{begin:04}.tar', 'w') as tar:
            for number, (data, label) in enumerate(samples[begin:end], begin):
                for name, content in ((f'{number:04}.png', data), (f'{number:04}.cls', str(label).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))

    def epoch(number: int) -> Any:
        tars = sorted(map(str, folder.glob('*.tar')))
        dataset: Any = wds.WebDataset(tars, shardshuffle=len(tars), seed=1000 * seed + number, empty_check=False)
        decoded = dataset.shuffle(BUFFER, seed=1000 * seed + number).decode('l8').to_tuple('png', 'cls')
        for images, labels in decoded.batched(BATCH, partial=False):
            yield torch.from_numpy(np.stack(images)), torch.as_tensor(labels)

    return epoch


LOADERS: dict[str, Callable[[Path, Digits, int], Epoch]] = {
    'headrace': headrace,
    'ImageFolder': image_folder,
    'WebDataset': webdataset,
}


def measure(small: bool) -> Result:
    seeds, epochs = (2, 1) if small else (5, 15)
    described = machine('torch', 'torchvision', 'webdataset', 'scikit-learn')
    train, test = load()
    with tempfile.TemporaryDirectory() as folder:
        accuracy = {
            name: [learn(make(Path(folder, name), train, seed), epochs, test, seed) for seed in range(seeds)]
            for name, make in LOADERS.items()
        }
    return {
        'machine': described,
        'settings': {
            'data': 'digits of scikit-learn, 8 x 8 pixels',
            'trained': len(train.labels),
            'tested': len(test.labels),
            'model': 'CNN with 2 convolutions of 16 and 32 channels',
            'batch': BATCH,
            'epochs': epochs,
            'seeds': seeds,
            "samples of WebDataset's buffer": BUFFER,
        },
        'accuracy in percent, by seed and epoch': accuracy,
        'final': {name: spread([run[-1] for run in runs]) for name, runs in accuracy.items()},
    }


def spread(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    return {'mean': round(float(np.mean(values)), 3), 'deviation': round(float(np.std(values, ddof=1)), 3)}


def claims(result: Result) -> dict[str, bool]:
    final, accuracy = result['final'], result['accuracy in percent, by seed and epoch']
    ours = final['headrace']
    return {
        'the stated accuracies are those of the runs': all(
            final[name] == spread([run[-1] for run in accuracy[name]]) for name in LOADERS
        ),
        'every loader has as many seeds and epochs': all(
            [len(run) for run in runs] == [result['settings']['epochs']] * result['settings']['seeds']
            for runs in accuracy.values()
        ),
        'headrace is within one deviation of each other loader, their larger one': all(
            abs(ours['mean'] - other['mean']) <= max(ours['deviation'], other['deviation']) for other in final.values()
        ),
    }


def draw(result: Result) -> Figure:
    from matplotlib.figure import Figure

    final = result['final']
    figure = Figure(figsize=(8.3, 3.2))
    means = ', '.join(f'{name} {one["mean"]:.1f} ± {one["deviation"]:.1f}' for name, one in final.items())
    figure.suptitle(f'Accuracy in percent: {means}')
    curves, points = figure.subplots(1, 2, width_ratios=[1.5, 1])
    for number, (name, color) in enumerate({'headrace': BLUE, 'ImageFolder': ORANGE, 'WebDataset': GREEN}.items()):
        runs = np.array(result['accuracy in percent, by seed and epoch'][name])
        epochs, marker = np.arange(1, 1 + runs.shape[1]), 'os^'[number]
        mean, deviation = runs.mean(0), runs.std(0, ddof=1)
        curves.plot(epochs, mean, color=color, marker=marker, markersize=3.5, label=name)
        curves.fill_between(epochs, mean - deviation, mean + deviation, color=color, alpha=0.18, linewidth=0)
        at = number + np.linspace(-0.15, 0.15, len(runs))
        points.plot(at, runs[:, -1], marker, color=color, markersize=4, alpha=0.6)
        points.errorbar(number, mean[-1], deviation[-1], color=color, marker='_', markersize=16, capsize=4)
    curves.set(title='mean and deviation of the seeds, percent', xlabel='epoch', ylim=(80, 100))
    curves.legend(loc='lower right')
    points.set(title='after the last epoch, each seed', xlim=(-0.6, 2.6))
    points.set_xticks(range(3), list(LOADERS))
    return figure


FIGURE = Made(measure, claims, draw)
