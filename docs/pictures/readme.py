"""Draw the two pictures of the README, into this folder. They need matplotlib.

usage: python docs/pictures/readme.py

"killed_and_resumed" has the samples that real loaders give to 8 and 2 ranks. "speed" has the figures of
benchmarks/README.md.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use('Agg')

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.order import Topology

FOLDER = Path(__file__).parent
BENCHMARKS = FOLDER.parents[1] / 'benchmarks' / 'README.md'
mpl.rcParams.update(
    {
        'svg.fonttype': 'none',  # text stays text
        'svg.hashsalt': 'headrace',  # the same picture is the same bytes
        'font.family': 'sans-serif',
        'font.size': 13,
    }
)
BATCH, STEPS, KILLED = 8, 12, 6
TEAL, GREY, RED, COLOURS = '#0f766e', '#94a3b8', '#b91c1c', 'viridis'


def next_steps(data: str, ranks: int, count: int, state: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
    """Train for some steps on a number of ranks.

    Returns:
        Sample numbers int64[count, BATCH] of the global batches, dealt to the ranks in turn, and the state behind them.
    """
    batches: list[np.ndarray] = []
    for rank in range(ranks):
        topology = Topology(rank=rank, world_size=ranks)
        dataset = StreamingDataset(local=data, shuffle=True, batch_size=BATCH // ranks, topology=topology)
        loader = StreamingDataLoader(dataset, batch_size=BATCH // ranks)
        if state is not None:
            loader.load_state_dict(state)
        batches.append(np.stack([np.asarray(batch['id']) for _, batch in zip(range(count), loader, strict=False)]))
        after = loader.state_dict()
    return np.stack(batches, axis=2).reshape(count, BATCH), after


def draw_run(axes: Axes, batches: np.ndarray, begin: int, ranks: int, name: str) -> None:
    """Draw global batches int64[steps, BATCH] from a step on: a column each, with the ranks' numbers."""
    for step, batch in enumerate(batches):
        axes.pcolormesh(
            [begin + step, begin + step + 0.86],
            np.arange(BATCH + 1),
            batch[:, None],
            cmap=COLOURS,
            vmin=0,
            vmax=BATCH * STEPS,
            edgecolors='white',
            linewidth=0.6,
        )
        for row, sample in enumerate(batch):
            colour = 'black' if sample > BATCH * STEPS / 2 else 'white'
            at = (begin + step + 0.43, row + 0.5)
            axes.text(*at, str(row % ranks), ha='center', va='center_baseline', fontsize=10, color=colour)
    axes.text(begin + (len(batches) - 0.14) / 2, -0.6, name, ha='center', va='bottom', fontsize=14)


def draw_resume() -> None:
    """A run that is killed on 8 ranks and goes on with 2, above one that is not."""
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns={'id': 'int'}, size_limit=400) as writer:
            for number in range(BATCH * STEPS):
                writer.write({'id': number})
        first, state = next_steps(folder, 8, KILLED)
        rest, _ = next_steps(folder, 2, STEPS - KILLED, state)
        whole, _ = next_steps(folder, 1, STEPS)
    assert np.array_equal(np.concatenate([first, rest]), whole)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 4), layout='constrained')
    draw_run(upper, first, 0, 8, '8 ranks')
    draw_run(upper, rest, KILLED + 1, 2, 'resumed on 2')
    upper.text(
        KILLED + 0.43,
        BATCH / 2,
        'kill -9',
        ha='center',
        va='center',
        rotation=90,
        color=RED,
        fontsize=16,
        weight='bold',
    )
    draw_run(lower, whole[:KILLED], 0, 1, '1 rank, never killed')
    draw_run(lower, whole[KILLED:], KILLED + 1, 1, 'the same samples in each step')
    for axes in (upper, lower):
        axes.set(xlim=(-0.1, STEPS + 1), ylim=(BATCH + 0.2, -2.2))
        axes.axis('off')
    save(figure, 'killed_and_resumed')


def draw_speed() -> None:
    """Samples per second of five loaders with two workers, as a part of headrace's."""
    rows = re.findall(r'^\| (\S+) \| 2 \| ([\d,]+) \|', BENCHMARKS.read_text(), re.MULTILINE)
    names = ('headrace', 'mapstyle', 'litdata', 'webdataset', 'mosaicml-streaming')
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), layout='constrained', sharey=True)
    for axes, kind, at in zip(panels, ('rows of tokens', 'short texts'), (0, len(names)), strict=True):
        rates = {name.strip('*'): int(rate.replace(',', '')) for name, rate in rows[at : at + len(names)]}
        values = [rates[name] / 1000 for name in names]
        bars = axes.barh(names, values, color=[TEAL, *[GREY] * 4])
        axes.bar_label(bars, [f'{value:,.0f}k' for value in values], padding=4)
        axes.set(title=f'{kind}, samples/s', xlim=(0, values[0] * 1.2), xticks=[])
        axes.spines[['top', 'right', 'bottom']].set_visible(False)
    panels[0].invert_yaxis()
    save(figure, 'speed')


def save(figure: Figure, name: str) -> None:
    """Save a picture that is readable on a dark page, too."""
    figure.savefig(FOLDER / f'{name}.svg', facecolor='white', metadata={'Date': None, 'Creator': None})


if __name__ == '__main__':
    draw_resume()
    draw_speed()
