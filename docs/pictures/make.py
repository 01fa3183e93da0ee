"""Draw the pictures of docs/shuffle_quality.md, into this folder. They need matplotlib.

usage: python docs/pictures/make.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use('Agg')

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from headrace.order import Mixture, OrderConfig, Schedule, StreamSize, make_order
from headrace.order.mixture.mixture import IntArray
from headrace.testing.order_quality import node_use, sequence_of

ALGORITHMS = ('native', 'py1e', 'py1br', 'py1b', 'py1s', 'naive')
BLOCK = 8000
BINS = 128
FOLDER = Path(__file__).parent


def draw_samples(axes: Axes, samples: IntArray) -> None:
    """Draw how many samples of each stretch of ids int64[N] stand in each stretch of positions, darker for more."""
    counts = np.histogram2d(np.arange(len(samples)), samples, BINS)[0]
    extent = (0, len(samples), 0, len(samples))
    axes.imshow(counts.T, cmap='Greys', origin='lower', extent=extent, aspect='auto', interpolation='nearest')
    axes.set(xlabel='position in the epoch', ylabel='sample number')


def draw_open(axes: Axes, shards: IntArray) -> None:
    """Draw the shards open at each position of a sequence of shard numbers int64[N]."""
    axes.plot(node_use(shards, 512).open, color='black', linewidth=0.8)
    axes.set(xlabel='position in the epoch', ylabel='shards open', xlim=(0, len(shards)), ylim=(0, None))


def save(name: str, algorithm: str, sizes: IntArray) -> None:
    """Draw an order of one canonical node over shards of sizes int64[shards]."""
    sequence = sequence_of(algorithm, sizes, 1, BLOCK, seed=1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout='constrained')
    draw_samples(left, sequence.samples)
    draw_open(right, sequence.shards)
    figure.suptitle(algorithm)
    # No version of matplotlib in the file: the same picture is the same bytes.
    figure.savefig(FOLDER / f'{name}.png', dpi=80, metadata={'Software': None})
    plt.close(figure)


def save_schedule() -> None:
    """Draw what batches have of each stream, beside the schedule, for both ways to share a batch."""
    points = [
        {'at': 0, 'proportions': {'web': 8, 'code': 2}},
        {'at': 60_000, 'proportions': {'web': 3, 'code': 4, 'math': 3}, 'change': 'linear'},
        {'at': 90_000, 'proportions': {'code': 1, 'math': 3}},
    ]
    names, batch, epoch_size = ('web', 'code', 'math'), 256, 512 * 100
    streams = [StreamSize(name=name, shard_sizes=[500] * 40) for name in names]
    mixture = Mixture.resolve(streams, epoch_size=epoch_size, schedule=Schedule.of(points))
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout='constrained', sharey=True)
    at = [0, 60_000, 90_000, 90_000, 2 * epoch_size]
    ideal = {'web': [0.8, 0.3, 0.3, 0, 0], 'code': [0.2, 0.4, 0.4, 0.25, 0.25], 'math': [0, 0.3, 0.3, 0.75, 0.75]}
    for axes, batching in zip(panels, ('random', 'stratified'), strict=True):
        size = batch if batching == 'stratified' else None
        config = OrderConfig(shuffle=True, batching=batching, global_batch_size=size, num_canonical_nodes=4)
        orders = [make_order(mixture, config, epoch) for epoch in range(2)]
        ids = np.concatenate([order.at(np.arange(epoch_size)) for order in orders])
        of = (np.searchsorted(mixture.sample_offsets, ids, 'right') - 1).reshape(-1, batch)
        for s, (name, shade) in enumerate(zip(names, ('black', '0.45', '0.7'), strict=True)):
            axes.plot(np.arange(len(of)) * batch, (of == s).mean(1), color=shade, linewidth=0.8, label=name)
            axes.plot(at, ideal[name], color='C3', linewidth=0.8, linestyle=':')
        axes.set(title=batching, xlabel='position in the run', xlim=(0, 2 * epoch_size), ylim=(0, 1))
    panels[0].set_ylabel('share of a batch of 256')
    panels[0].legend(fontsize=8)
    figure.savefig(FOLDER / 'schedule.png', dpi=80, metadata={'Software': None})
    plt.close(figure)


def main() -> None:
    """Draw all of them."""
    save_schedule()
    equal = np.full(64, 1000)
    uneven = np.random.default_rng(2).integers(100, 1901, 64)
    for algorithm in ALGORITHMS:
        save(algorithm, algorithm, equal)
    for algorithm in ('native', 'py1e'):
        save(f'{algorithm}_uneven', algorithm, uneven)


if __name__ == '__main__':
    main()
