"""A run on 2 ranks, resumed on 4, resumed on 1, under Lightning: what becomes of its samples with three libraries.

Each library trains the same GPT on the same text, once without interruption, on 2 ranks, and once with two crashes. A
crash comes some batches after the last checkpoint of `ModelCheckpoint`. The runs are real processes over gloo. The
peers are used as in `benchmarks/lightning_resume.py`, by their own documentation.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures.results import BLUE, GRAY, RED, Made, Result
from benchmarks.machine import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    'headrace': ('headrace', None),
    'mosaicml-streaming': ('streaming', 'lightning_resume:MosaicMLDataModule'),
    'litdata': ('litdata', 'lightning_resume:LitDataModule'),
}
"""The module of each, and what makes its data module."""
BATCH = 16
EPOCHS = 2
CONTEXT = 64


@dataclasses.dataclass(frozen=True)
class Plan:
    """When what happens, in global batches."""

    epoch: int
    every: int
    """Batches between two checkpoints."""
    first_crash: int
    second_crash: int

    @property
    def checkpoints(self) -> tuple[int, int]:
        """The steps of the checkpoints that the two resumes should begin from."""
        return self.first_crash // self.every * self.every, self.second_crash // self.every * self.every


FULL, SMALL = Plan(epoch=60, every=20, first_crash=25, second_crash=45), Plan(6, 2, 3, 5)


def row(tokens: Any, number: int) -> dict[str, Any]:
    return {'id': number, 'row': tokens[number]}


def write_text(folder: Path, samples: int) -> dict[str, str]:
    """The same samples for each library, in shards of 40."""
    from examples.demo.corpora import corpus_rows
    from headrace import MDSWriter

    tokens = corpus_rows('prose', rows=samples, row_bytes=CONTEXT + 1)
    folders = {'all': str(folder / 'mds'), 'litdata': str(folder / 'litdata')}
    columns = {'id': 'int', 'row': f'ndarray:uint8:{CONTEXT + 1}'}
    with MDSWriter(out=folders['all'], columns=columns, size_limit=500 + 40 * (CONTEXT + 25)) as writer:
        for number in range(samples):
            writer.write(row(tokens, number))
    if importlib.util.find_spec('litdata'):
        from litdata import optimize

        make = functools.partial(row, tokens)
        optimize(make, list(range(samples)), folders['litdata'], chunk_size=40, num_workers=1, verbose=False)
    return folders


def chain_of(library: str, plan: Plan, out: str, streams: dict[str, str]) -> list[Any]:
    """The uninterrupted run, and the three legs of the interrupted one."""
    from tests.support.trainers.lightning_run import Run

    def leg(name: str, ranks: int, **more: Any) -> Run:
        return Run(
            name=f'{library}-{name}',
            out=out,
            streams={'all': streams['all']} if library == 'headrace' else streams,
            batch_size=BATCH // ranks,
            devices=ranks,
            strategy='ddp' if ranks > 1 else 'auto',
            datamodule=LIBRARIES[library][1],
            trainer={'max_epochs': EPOCHS},
            **more,
        )

    first = leg('2 ranks', 2, every_steps=plan.every, crash_at=plan.first_crash)
    again = plan.second_crash - plan.checkpoints[0]
    second = leg('4 ranks', 4, every_steps=plan.every, crash_at=again, checkpoint=str(first.checkpoints))
    return [leg('whole', 2), first, second, leg('1 rank', 1, checkpoint=str(second.checkpoints))]


def train(run: Any) -> None:
    """Train a GPT on this rank, and record samples and losses."""
    import torch

    from examples.demo.model import make_model, make_optimizer, next_byte_loss
    from tests.support.trainers.lightning_run import Crash, Model
    from tests.support.trainers.lightning_run import train as train_model

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return next_byte_loss(self.model, rows)

    class Gpt(Model):
        def __init__(self, run: Any) -> None:
            super().__init__(run)
            self.layer: Any = Loss()

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            self.write(step=self.trainer.global_step, loss=loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.layer)

        def on_fit_end(self) -> None:
            """Leave the weights out of the records."""

    torch.set_num_threads(1)
    try:
        train_model(run, Gpt)
    except Crash:
        if not run.is_to_die:
            raise


def run_ranks(run: Any) -> None:
    from tests.support.trainers.chains import fork_ranks

    fork_ranks(
        functools.partial(train, run),
        ranks=run.devices,
        nodes=1,
        log=lambda rank: Path(run.out, f'{run.name}.rank{rank}.log'),
        launcher={'TORCHELASTIC_RUN_ID': run.name} if run.devices > 1 else None,
        node_variable='GROUP_RANK',
        seconds=900,
    )


def trained(run: Any, checkpoint: Path | None) -> dict[str, Any]:
    """The global batches of a run that its checkpoint holds: ids, epochs, losses."""
    from tests.support.trainers.lightning_oracle import records, trained_before

    batches = trained_before(run, checkpoint)
    losses = [np.mean([record['loss'] for record in step]) for step in zip(*records(run, 'loss'), strict=True)]
    return {
        'ranks': run.devices,
        'ids': [ids for ids, _, _ in batches],
        'epochs': [epoch for _, epoch, _ in batches],
        'loss': [round(float(loss), 9) for loss in losses[: len(batches)]],
    }


def measure(small: bool) -> Result:
    paths = [str(path) for path in (ROOT, ROOT / 'benchmarks')]
    sys.path[:0] = paths
    os.environ['PYTHONPATH'] = os.pathsep.join([*paths, os.environ.get('PYTHONPATH', '')])
    from tests.support.trainers.lightning_run import newest

    plan = SMALL if small else FULL
    libraries = [name for name, (module, _) in LIBRARIES.items() if importlib.util.find_spec(module)]
    described = machine('torch', 'lightning')
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        streams = write_text(Path(folder), plan.epoch * BATCH)
        for library in libraries:
            out = Path(folder, f'{library}-runs')
            out.mkdir()
            whole, *legs = chain_of(library, plan, str(out), streams)
            for run in (whole, *legs):
                run_ranks(run)
            held = [newest(run.checkpoints) for run in legs[:-1]]
            found[library] = {
                'version': version(library),
                'uninterrupted': trained(whole, None),
                'legs': [trained(run, file) for run, file in zip(legs, [*held, None], strict=True)],
            }
            found[library]['verdict'] = verdict(found[library])
    return {
        'machine': described,
        'settings': {
            'model': 'GPT over bytes: 2 blocks, width 64, context 64',
            'global batch': BATCH,
            'epochs': EPOCHS,
            **dataclasses.asdict(plan),
        },
        'libraries': found,
    }


def verdict(library: Result) -> dict[str, Any]:
    """Lost, repeated and moved samples of the resumed run by epoch, and the distance of its losses from the others."""
    whole = library['uninterrupted']
    ids, epochs, losses = (
        list(chain.from_iterable(leg[key] for leg in library['legs'])) for key in ('ids', 'epochs', 'loss')
    )
    due, done = (
        Counter((epoch, i) for epoch, batch in zip(run_epochs, run_ids, strict=True) for i in batch)
        for run_epochs, run_ids in ((whole['epochs'], whole['ids']), (epochs, ids))
    )
    same = sum(a == b for a, b in zip(whole['ids'], ids, strict=False))
    apart = [abs(a - b) for a, b in zip(whole['loss'], losses, strict=False)]
    return {
        'samples expected': due.total(),
        'samples lost': (due - done).total(),
        'samples repeated': (done - due).total(),
        'batches': len(whole['ids']),
        'batches with the same samples': same,
        'steps trained': len(ids),
        'largest difference of losses': max(apart),
    }


def claims(result: Result) -> dict[str, bool]:
    libraries = result['libraries']
    ours = libraries['headrace']['verdict']
    return {
        'headrace loses and repeats nothing, and every batch is that of the uninterrupted run': (
            ours['samples lost'] == ours['samples repeated'] == 0
            and ours['batches with the same samples'] == ours['batches'] == ours['steps trained']
        ),
        "headrace's losses are those of the uninterrupted run within 1e-4": ours['largest difference of losses'] < 1e-4,
        'every sample is expected once in each epoch': all(
            one['verdict']['samples expected'] == EPOCHS * BATCH * result['settings']['epoch']
            for one in libraries.values()
        ),
        'the verdicts are those of the ids': all(verdict(one) == one['verdict'] for one in libraries.values()),
        'each run was on 2, 4 and 1 ranks': all(
            [leg['ranks'] for leg in one['legs']] == [2, 4, 1] for one in libraries.values()
        ),
    }


def places(library: Result) -> tuple[Any, Any]:
    """For each sample of the resumed run, its batch, and the batch of the uninterrupted run that has it."""
    whole = library['uninterrupted']
    expected = {
        (epoch, i): number
        for number, (epoch, batch) in enumerate(zip(whole['epochs'], whole['ids'], strict=True))
        for i in batch
    }
    found: set[tuple[int, int]] = set()
    number = 0
    for leg in library['legs']:
        for epoch, batch in zip(leg['epochs'], leg['ids'], strict=True):
            found |= {(number, expected[epoch, i]) for i in batch if (epoch, i) in expected}
            number += 1
    at, of = np.array(sorted(found)).T
    return at, of


def draw(result: Result) -> Figure:
    from matplotlib.figure import Figure

    libraries = result['libraries']
    figure = Figure(figsize=(8.3, 4.6))
    counts = [f'{name} {one["verdict"]["samples lost"]}' for name, one in libraries.items()]
    expected = libraries['headrace']['verdict']['samples expected']
    figure.suptitle(f'2 → 4 → 1 ranks, samples lost of {expected:,}: {", ".join(counts)}')
    panels: Any = figure.subplots(2, len(libraries), sharex=True, sharey='row', height_ratios=[2, 1], squeeze=False)
    for column, (name, one) in enumerate(libraries.items()):
        upper, lower = panels[:, column]
        at, of = places(one)
        upper.plot(at[at == of], of[at == of], 's', color=BLUE, markersize=2, label='as without interruption')
        upper.plot(at[at != of], of[at != of], 's', color=RED, markersize=0.9, label='in another batch')
        said = one['verdict']
        changed = said['batches'] - said['batches with the same samples']
        upper.set_title(
            f'{name} {one["version"]}\n{said["samples lost"]} samples lost, {said["samples repeated"]} repeated,\n'
            f'batches changed: {changed} of {said["batches"]}'
        )
        losses = list(chain.from_iterable(leg['loss'] for leg in one['legs']))
        whole = one['uninterrupted']['loss']
        common = min(len(losses), len(whole))
        lower.plot(np.abs(np.subtract(losses[:common], whole[:common])), color=BLUE, linewidth=1)
        lower.set_yscale('symlog', linthresh=1e-7)
        lower.set_ylim(0, 10)
        lower.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
        lower.set_xlabel('batch of the resumed run')
        edges = np.cumsum([0, *(len(leg['ids']) for leg in one['legs'])])
        for leg, begin, end in zip(one['legs'], edges, edges[1:], strict=False):
            for panel in (upper, lower):
                panel.axvline(end - 0.5, color=GRAY, linewidth=0.8, linestyle='--')
            ranks = f'{leg["ranks"]}\nrank{"s" * (leg["ranks"] > 1)}' if end > begin else ''
            upper.annotate(ranks, ((begin + end) / 2, 0.99), xycoords=('data', 'axes fraction'), ha='center', va='top',
                           fontsize=7.5, color='#444444')  # fmt: skip
    panels[0][0].set_ylabel('batch of the uninterrupted run\nwith the same sample')
    panels[1][0].set_ylabel('distance\nof losses')
    steps = result['settings']['epoch'] * EPOCHS
    panels[0][0].set_xlim(-0.02 * steps, 1.02 * steps)
    panels[0][0].set_ylim(-0.02 * steps, 1.25 * steps)
    handles, labels = panels[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=2, markerscale=4)
    return figure


FIGURE = Made(measure, claims, draw)
