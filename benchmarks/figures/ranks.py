"""The loss of one small GPT on 1, 2, 4 and 8 ranks, with the same global batch.

The ranks are processes that average their gradients over gloo. Each run records the ids and the loss of every global
batch. One more run has another shuffle seed, which shows how far apart losses are if the order differs.
"""

from __future__ import annotations

import functools
import hashlib
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures.results import BLUE, GRAY, GREEN, ORANGE, RED, Made, Result
from benchmarks.machine import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 32
CONTEXT = 64
EPOCHS = 2
MIX = {'code': 0.3, 'prose': 0.7}
WORLDS = {'1': (1, 2), '2': (2, 1), '4': (4, 0), '8': (8, 0)}
"""Ranks, and dataloader workers of each."""
OTHER_SEED = '1 rank, another seed'


def write_text(folder: Path, samples: int) -> None:
    """Rows of text of the standard library as shards, enough for one epoch of so many samples."""
    from examples.demo.corpora import columns, corpus_rows
    from examples.demo.corpora import samples as rows_of
    from headrace import MDSWriter

    for corpus in MIX:
        rows = corpus_rows(corpus, rows=samples, row_bytes=CONTEXT + 1)
        with MDSWriter(out=str(folder / corpus), columns=columns(CONTEXT + 1), size_limit='32kb') as writer:
            for sample in rows_of(corpus, rows):
                writer.write(sample)


def train(shards: Path, records: Path, batches: int, workers: int, seed: int) -> None:
    """Train on this rank, and record each step."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from examples.demo.model import make_model, make_optimizer, next_byte_loss
    from examples.demo.records import Recorder
    from headrace import Stream, StreamingDataLoader, StreamingDataset

    torch.set_num_threads(1)
    distributed.init_process_group('gloo')
    rank, world = distributed.get_rank(), distributed.get_world_size()
    streams = [Stream(local=str(shards / name), proportion=share, name=name) for name, share in MIX.items()]
    size = BATCH // world
    dataset = StreamingDataset(
        streams=streams, batch_size=size, shuffle=True, shuffle_seed=seed, epoch_size=batches * BATCH
    )
    loader = StreamingDataLoader(dataset, batch_size=size, num_workers=workers)
    model: Any = DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    recorder = Recorder(records, rank)
    recorder.start(step=0, world_size=world)
    step = 0
    for epoch in range(EPOCHS):
        for batch in loader:
            loss = next_byte_loss(model, batch['tokens'])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            recorder.trained(step=step, epoch=epoch, ids=batch['id'].tolist(), loss=loss.item())
    distributed.destroy_process_group()


def measure(small: bool) -> Result:
    from examples.demo.records import read_run
    from tests.support.trainers.chains import fork_ranks

    batches = 3 if small else 150
    worlds = {**WORLDS, OTHER_SEED: (1, 0)}
    described, runs = machine('torch'), {}
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder, 'shards')
        write_text(shards, batches * BATCH)
        for name, (ranks, workers) in worlds.items():
            records = Path(folder, name)
            records.mkdir()
            seed = 1 if name == OTHER_SEED else 9176
            fork_ranks(
                functools.partial(train, shards, records, batches, workers, seed),
                ranks=ranks,
                nodes=1,
                log=lambda rank, records=records: records / f'rank{rank}.log',
                launcher={},
                node_variable='GROUP_RANK',
                seconds=900,
            )
            steps = read_run(records).steps
            numbers = sorted(steps)
            ids = ';'.join(','.join(map(str, steps[number].ids)) for number in numbers)
            runs[name] = {
                'ranks': ranks,
                'workers of each': workers,
                'ids of all global batches, sha256': hashlib.sha256(ids.encode()).hexdigest(),
                'loss': [steps[number].loss for number in numbers],
            }
    return {
        'machine': described,
        'settings': {
            'model': 'GPT over bytes: 2 blocks, width 64, context 64',
            'global batch': BATCH,
            'steps': EPOCHS * batches,
            'epochs': EPOCHS,
            'mixture': MIX,
            'optimizer': 'AdamW, 1e-3',
        },
        'runs': runs,
        'largest difference from 1 rank': {
            name: float(np.abs(distance(runs, name)).max()) for name in runs if name != '1'
        },
    }


def distance(runs: Mapping[str, Any], name: str) -> Any:
    """By how much each loss of a run is above that of 1 rank."""
    return np.subtract(runs[name]['loss'], runs['1']['loss'])


def claims(result: Result) -> dict[str, bool]:
    runs, stated = result['runs'], result['largest difference from 1 rank']
    largest = max(stated[name] for name in WORLDS if name != '1')
    digests = {runs[name]['ids of all global batches, sha256'] for name in WORLDS}
    drop = runs['1']['loss'][0] - runs['1']['loss'][-1]
    return {
        'every global batch has the same samples on 1, 2, 4 and 8 ranks': len(digests) == 1,
        'another seed gives other batches': runs[OTHER_SEED]['ids of all global batches, sha256'] not in digests,
        'the stated differences are those of the curves': all(
            stated[name] == float(np.abs(distance(runs, name)).max()) for name in stated
        ),
        'the curves differ by less than 1e-4, and by less than a thousandth of what another seed does': (
            largest < 1e-4 and largest < stated[OTHER_SEED] / 1000
        ),
        'the model learns': len(runs['1']['loss']) == result['settings']['steps'] and drop > 0,
    }


def draw(result: Result) -> Figure:
    from matplotlib.figure import Figure

    runs = result['runs']
    largest = max(result['largest difference from 1 rank'][name] for name in WORLDS if name != '1')
    figure = Figure(figsize=(8.3, 3.3))
    figure.suptitle(f'One GPT on 1, 2, 4 and 8 ranks: the losses differ by {largest:.1e} at most')
    curves, distances = figure.subplots(1, 2, width_ratios=[1.15, 1])
    lines = {'8': (GREEN, 7), '4': (ORANGE, 4.5), '2': (BLUE, 2.6), '1': ('black', 0.9)}
    count = result['settings']['steps']
    for name, (color, width) in lines.items():
        label = f'{name} rank{"s" * (name != "1")} x {runs[name]["workers of each"]} workers'
        curves.plot(np.arange(1, 1 + count), runs[name]['loss'], color=color, linewidth=width, label=label)
    stretch = math.gcd(10, count)
    for name, color in {OTHER_SEED: RED, '2': BLUE, '4': ORANGE, '8': GREEN}.items():
        largest_here = np.abs(distance(runs, name)).reshape(-1, stretch).max(1)
        label = name if name == OTHER_SEED else f'{name} ranks'
        distances.plot(np.arange(stretch, 1 + count, stretch), largest_here, color=color, label=label)
    step = float(np.spacing(np.float32(2.7)))
    distances.axhline(step, color=GRAY, linestyle=':', label='spacing of float32 at a loss of 2.7')
    distances.set_yscale('log')
    distances.set_ylim(1e-8, 10)
    distances.set(title=f'distance from 1 rank, largest of {stretch} steps', xlabel='optimizer step')
    curves.set(title='loss of the global batch of 32, nats a byte', xlabel='optimizer step')
    curves.legend(loc='upper right')
    distances.legend(loc='center', bbox_to_anchor=(0.5, 0.5), fontsize=8)
    return figure


FIGURE = Made(measure, claims, draw)
