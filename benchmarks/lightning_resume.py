"""Resuming under Lightning: what headrace, mosaicml-streaming and litdata train twice, never, or elsewhere.

Each cell is an interrupted run and one that continues from its last checkpoint, as real processes over gloo, held
against an uninterrupted run of the same library. The peers are used as Lightning and their documentation have it: a
plain data module, one dataset, and their own `StreamingDataLoader`, whose state Lightning saves and restores. Their
ranks get torchrun's environment variables, except where a row says otherwise. A library that is not there is left out.

usage: python benchmarks/lightning_resume.py [OUT]
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from lightning.pytorch import LightningDataModule
from resume_table import compare, failure, show

from tests.support import support_file
from tests.support.trainers.lightning_matrix import OPTIONS, Option, Scenario, chain_of
from tests.support.trainers.lightning_oracle import trained_before
from tests.support.trainers.lightning_run import Run, newest
from tests.support.trainers.ranks import run_chains

SAMPLES = 96
LIBRARIES = {'headrace': 'headrace', 'mosaicml-streaming': 'streaming', 'litdata': 'litdata'}
"""And how each is imported."""

# Only here: the matrix of the tests has these with two other options, so that they change one thing at a time.
OPTIONS['batch size of a rank kept'] = Option(second=lambda run: {'batch_size': 4 if run.devices == 1 else 8})

ROWS = {
    'step, 1 rank': Scenario('single', 'step', 'none', '1x0', '1x0'),
    'step, 2 ranks': Scenario('ddp', 'step', 'none', '2x0', '2x0'),
    'step, 1 rank -> 2 ranks': Scenario('ddp', 'step', 'none', '1x0', '2x0'),
    'step, 2 ranks x 2 workers -> 1 rank': Scenario('ddp', 'step', 'none', '2x2', '1x0'),
    'step, 2 ranks -> 4 ranks x 1 worker': Scenario('ddp', 'step', 'none', '2x0', '4x1'),
    'step, ddp_spawn, 2 ranks': Scenario('ddp_spawn', 'step', 'none', '2x0', '2x0'),
    'step, tensor parallel, 2 ranks': Scenario('model_parallel', 'step', 'none', '2x0', '2x0'),
    'last step of an epoch': Scenario('single', 'last step', 'none', '1x0', '1x0'),
    'end of an epoch': Scenario('single', 'epoch end', 'none', '1x0', '1x0'),
    'validation in mid-epoch': Scenario('single', 'validation', 'val_check_interval=5', '1x0', '1x0'),
    'exception': Scenario('single', 'exception', 'none', '1x0', '1x0'),
    'exception, 2 ranks x 2 workers -> 1 rank': Scenario('ddp', 'exception', 'none', '2x2', '1x0'),
    'exception, 5 accumulated batches': Scenario('single', 'exception', 'accumulate_grad_batches=5', '1x0', '1x0'),
    'SIGTERM': Scenario('single', 'SIGTERM', 'none', '1x0', '1x0'),
    'Timer': Scenario('single', 'Timer', 'none', '1x0', '1x0'),
    'after a fit that max_steps ended': Scenario('single', 'after the fit', 'none', '1x0', '1x0'),
    'step, max_steps': Scenario('single', 'step', 'max_steps', '1x0', '1x0'),
    'end of an epoch, max_steps': Scenario('single', 'epoch end', 'max_steps', '1x0', '1x0'),
    'step, limit_train_batches=8': Scenario('single', 'step', 'limit_train_batches=8', '1x0', '1x0'),
    'end of an epoch, limit_train_batches=8': Scenario('single', 'epoch end', 'limit_train_batches=8', '1x0', '1x0'),
    'step, overfit_batches=4': Scenario('single', 'step', 'overfit_batches=4', '1x0', '1x0'),
    'step, estimated_stepping_batches': Scenario('single', 'step', 'estimated_stepping_batches', '1x0', '1x0'),
    'step, reload_dataloaders_every_n_epochs': Scenario(
        'single', 'step', 'reload_dataloaders_every_n_epochs=1', '1x0', '1x0'
    ),
    'step, loader without a length': Scenario('single', 'step', 'no length', '1x0', '1x0'),
    'step, manual optimization': Scenario('single', 'step', 'manual optimization', '1x0', '1x0'),
    'step, 1 rank -> 2 ranks, batch size of a rank kept': Scenario(
        'ddp', 'step', 'batch size of a rank kept', '1x0', '2x0'
    ),
    'step, 2 ranks -> 1 rank, batch size of a rank kept': Scenario(
        'ddp', 'step', 'batch size of a rank kept', '2x0', '1x0'
    ),
    'step, global batch of 8 -> 12': Scenario('single', 'step', 'batch size of 12', '1x0', '1x0'),
}


# -- the peers, in the ranks ------------------------------------------------------------------------------------------


class Unsized:
    """A loader without its length, with the state that it has."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


class PeerDataModule(LightningDataModule):
    """A dataset that is made once, and a loader whenever Lightning wants one."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run_spec = run

    def make_dataset(self) -> Any:
        raise NotImplementedError

    def make_loader(self) -> Any:
        raise NotImplementedError

    def setup(self, stage: str) -> None:  # noqa: ARG002
        self.dataset = self.make_dataset()

    def train_dataloader(self) -> Any:
        loader = self.make_loader()
        return Unsized(loader) if self.run_spec.unsized else loader

    def val_dataloader(self) -> Any:
        if not self.run_spec.validate:
            return []
        samples: Any = [{'id': number, 'row': torch.zeros(4)} for number in range(SAMPLES)]
        return torch.utils.data.DataLoader(samples, batch_size=self.run_spec.batch_size)


class MosaicMLDataModule(PeerDataModule):
    def make_dataset(self) -> Any:
        from streaming import StreamingDataset

        run = self.run_spec
        parallel = {'replication': run.tensor_parallel} if run.tensor_parallel > 1 else {}
        return StreamingDataset(local=run.streams['all'], shuffle=True, batch_size=run.batch_size, **parallel)

    def make_loader(self) -> Any:
        from streaming import StreamingDataLoader

        run = self.run_spec
        return StreamingDataLoader(self.dataset, batch_size=run.batch_size, num_workers=run.workers, **run.module)


class LitDataModule(PeerDataModule):
    def make_dataset(self) -> Any:
        from litdata import StreamingDataset

        # By itself it is True on several ranks and False on one, and neither resumes from the other.
        return StreamingDataset(self.run_spec.streams['litdata'], shuffle=True, drop_last=True)

    def make_loader(self) -> Any:
        from litdata import StreamingDataLoader

        run = self.run_spec
        return StreamingDataLoader(self.dataset, batch_size=run.batch_size, num_workers=run.workers, **run.module)


DATA_MODULES = {
    'mosaicml-streaming': 'lightning_resume:MosaicMLDataModule',
    'litdata': 'lightning_resume:LitDataModule',
}


# -- the data ---------------------------------------------------------------------------------------------------------


def sample(number: int) -> dict[str, Any]:
    return {'id': number, 'row': np.full(4, number, np.float32)}


def write(root: Path, libraries: list[str]) -> dict[str, str]:
    """The same samples for each library, in 12 shards of 8."""
    from headrace import MDSWriter

    folders = {'all': str(root / 'mds'), 'litdata': str(root / 'litdata')}
    columns = {'id': 'int', 'row': 'ndarray:float32:4'}
    with MDSWriter(out=folders['all'], columns=columns, size_limit=500 + 28 * 8) as writer:
        for number in range(SAMPLES):
            writer.write(sample(number))
    if 'litdata' in libraries:
        from litdata import optimize

        optimize(sample, list(range(SAMPLES)), folders['litdata'], chunk_size=8, num_workers=1, verbose=False)
    return folders


# -- the verdict ------------------------------------------------------------------------------------------------------


def cell(error: str | None, reference: Run, first: Run, second: Run) -> str:
    if error is not None:
        return failure(error)
    try:
        checkpoint = newest(first.checkpoints)
        whole, before, after = (
            [ids for ids, _, _ in trained_before(run, file)]
            for run, file in ((reference, None), (first, checkpoint), (second, None))
        )
    except AssertionError as reason:
        return str(reason)
    return compare(whole, before + after)


# -- the runs ---------------------------------------------------------------------------------------------------------


def chains(library: str, folders: dict[str, str], out: str) -> dict[str, list[Run]]:
    """An uninterrupted run, one that is interrupted, and one that continues, for each row."""
    found: dict[str, list[Run]] = {}
    for number, (row, scenario) in enumerate(ROWS.items()):
        streams = {'all': folders['all']} if library == 'headrace' else folders
        first, second = (
            dataclasses.replace(run, datamodule=DATA_MODULES.get(library))
            for run in chain_of(scenario, f'{library}-{number}', out, streams)
        )
        told = {'crash_at': None, 'terminate_at': None, 'time_out_at': None, 'at_end': False, 'checkpoint': None}
        whole = dataclasses.replace(first, **told, name=f'{library}-{number}-whole', trainer=second.trainer)
        found[row] = [whole, first, second]
    return found


def column(library: str, folder: Path, folders: dict[str, str]) -> dict[str, str]:
    """The result of each row with a library."""
    found = chains(library, folders, str(folder))
    fields = [[dataclasses.asdict(run) for run in runs] for runs in found.values()]
    errors = run_chains(support_file('trainers/lightning_chains.py'), fields, folder, timeout=3600)
    return {row: cell(error, *runs) for (row, runs), error in zip(found.items(), errors, strict=True)}


def main() -> None:
    # For the ranks, which make the peers' data modules by name.
    path = [str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')]
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, path))
    libraries = [name for name, module in LIBRARIES.items() if importlib.util.find_spec(module)]
    with tempfile.TemporaryDirectory() as folder:
        folders = write(Path(folder), libraries)
        columns: dict[str, dict[str, str]] = {}
        for library in libraries:
            out = Path(folder, f'{library}-runs')
            out.mkdir()
            columns[library] = column(library, out, folders)
    show(columns)


if __name__ == '__main__':
    main()
