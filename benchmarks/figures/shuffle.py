"""Accuracy of a small CNN on digits that are written class after class, by shuffle algorithm and block size."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures.convergence import spread
from benchmarks.figures.digits import BATCH, Digits, learn, load
from benchmarks.figures.results import BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, Made, Result
from benchmarks.machine import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARD = 20
"""Samples of a shard, so that there are 60 of them, 6 of a class."""
BLOCKS = {'native': BLUE, 'py1e': ORANGE, 'py1br': GREEN, 'py1b': PURPLE}
"""Algorithms with a block size, and their colours."""
WHOLE = ('naive', 'py1s', 'no shuffle')
"""Without."""


def write_sorted(folder: Path, train: Digits) -> None:
    from headrace import MDSWriter

    columns = {'image': 'ndarray:uint8:8,8', 'label': 'int'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=220 + SHARD * (64 + 8 + 4)) as writer:
        for number in np.argsort(train.labels, kind='stable'):
            writer.write({'image': train.images[number], 'label': int(train.labels[number])})


def accuracy(folder: Path, test: Digits, algorithm: str, block: int | None, epochs: int, seed: int) -> float:
    from headrace import StreamingDataLoader, StreamingDataset

    # A fixed number of canonical nodes: this is about the block alone.
    dataset = StreamingDataset(
        local=str(folder), batch_size=BATCH, remainder='drop', num_canonical_nodes=1, shuffle=algorithm != 'no shuffle',
        shuffle_algo=None if algorithm == 'no shuffle' else algorithm, shuffle_seed=seed, shuffle_block_size=block,
    )  # fmt: skip
    loader = StreamingDataLoader(dataset, batch_size=BATCH)
    return learn(lambda _: ((batch['image'], batch['label']) for batch in loader), epochs, test, seed)[-1]


def measure(small: bool) -> Result:
    seeds, epochs = (2, 1) if small else (5, 5)
    shards_of_a_block = [1, 60] if small else [1, 2, 4, 8, 16, 32, 60]
    described = machine('torch', 'scikit-learn')
    train, test = load()
    with tempfile.TemporaryDirectory() as folder:
        write_sorted(Path(folder), train)

        def seeds_of(algorithm: str, block: int | None) -> list[float]:
            return [accuracy(Path(folder), test, algorithm, block, epochs, seed) for seed in range(seeds)]

        blocks = {
            name: {str(shards): seeds_of(name, shards * SHARD) for shards in shards_of_a_block} for name in BLOCKS
        }
        whole = {name: seeds_of(name, None) for name in WHOLE}
        default = seeds_of('native', None)
        number = len(list(Path(folder).glob('*.mds')))
    return {
        'machine': described,
        'settings': {
            'data': 'digits of scikit-learn, sorted by class',
            'trained': len(train.labels),
            'tested': len(test.labels),
            'shards': number,
            'samples of a shard': SHARD,
            'canonical nodes': 1,
            'batch': BATCH,
            'epochs': epochs,
            'seeds': seeds,
        },
        'accuracy in percent, by algorithm and shards of a block': blocks,
        'accuracy in percent, without blocks': whole,
        'accuracy in percent, the defaults': default,
        'means': {
            **{name: {shards: spread(runs) for shards, runs in of.items()} for name, of in blocks.items()},
            **{name: spread(runs) for name, runs in whole.items()},
            'the defaults': spread(default),
        },
    }


def claims(result: Result) -> dict[str, bool]:
    means = result['means']
    blocks = result['accuracy in percent, by algorithm and shards of a block']
    whole = result['accuracy in percent, without blocks']
    naive, default = means['naive'], means['the defaults']
    return {
        'the stated accuracies are those of the runs': (
            all(means[name][n] == spread(runs) for name, of in blocks.items() for n, runs in of.items())
            and all(means[name] == spread(runs) for name, runs in whole.items())
        ),
        'the default, a block of all samples, is within one deviation of a full shuffle': (
            abs(default['mean'] - naive['mean']) <= max(default['deviation'], naive['deviation'])
        ),
        'a block of one shard is worse than the default': means['native']['1']['mean'] < default['mean'],
        'data in sorted order need a shuffle': means['no shuffle']['mean'] < default['mean'] - 20,
    }


def draw(result: Result) -> Figure:
    from matplotlib.figure import Figure

    means: Any = result['means']
    figure = Figure(figsize=(8.3, 3.6))
    worse = [
        int(n)
        for n, one in means['native'].items()
        if one['mean'] < means['naive']['mean'] - means['naive']['deviation']
    ]
    short = f'1 to {max(worse)}' if worse else 'few'
    figure.suptitle(f'Data in order of classes: {short} shards a block are too few, the default is enough')
    axes = figure.subplots()
    shards = np.array([int(text) for text in means['native']])
    for number, (name, color) in enumerate(BLOCKS.items()):
        mean, deviation = (np.array([one[key] for one in means[name].values()]) for key in ('mean', 'deviation'))
        # Next to each other, so that no bar hides another.
        at, label = shards * 1.025 ** (number - 1.5), f'{name}{" (default)" * (name == "native")}'
        look: Any = {'color': color, 'marker': 'os^D'[number], 'markersize': 4.5, 'capsize': 2, 'elinewidth': 0.9}
        axes.errorbar(at, mean, deviation, label=label, **look)
    full = means['naive']
    axes.axhspan(
        full['mean'] - full['deviation'], full['mean'] + full['deviation'], color=GRAY, alpha=0.25, linewidth=0
    )
    for name, style, color in (('naive', '-', GRAY), ('py1s', '--', RED), ('no shuffle', ':', 'black')):
        label = {'naive': 'naive: a full shuffle', 'py1s': 'py1s: shards, then samples in each'}.get(name, name)
        text = f'{label}, {means[name]["mean"]:.1f}'
        axes.axhline(means[name]['mean'], color=color, linestyle=style, linewidth=1.2, label=text)
    axes.set_xscale('log')
    axes.set_xticks(shards, [str(n) for n in shards])
    axes.minorticks_off()
    axes.set(
        title=f'accuracy in percent after {result["settings"]["epochs"]} epochs, mean and deviation of the seeds',
        xlabel=f'shards that a block spans, of {result["settings"]["shards"]} (6 of each class)',
    )
    axes.legend(loc='lower right', fontsize=8, bbox_to_anchor=(1, 0.12), frameon=True, framealpha=1, edgecolor='white')
    return figure


FIGURE = Made(measure, claims, draw)
