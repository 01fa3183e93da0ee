"""The position as JSON beside each checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from test_lightning_processes import run_forked

import headrace
import lightning
from headrace.cli import main
from headrace.lightning import StreamingDataModule
from headrace.lightning.position_file import position_file
from tests.support.trainers.lightning_run import Crash, Model, Run, dataset, train

pytestmark = [pytest.mark.filterwarnings('ignore')]


@pytest.fixture
def run(mixes: dict[str, dict[str, str]], tmp_path: Path) -> Run:
    return Run(name='run', out=str(tmp_path), streams=mixes['uneven'])


def fit(run: Run, *callbacks: Any, plugins: Any = None, steps: int = 8, **module: Any) -> Trainer:
    trainer = Trainer(
        accelerator='cpu',
        devices=1,
        logger=False,
        max_steps=steps,
        callbacks=list(callbacks),
        plugins=plugins,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
    )
    trainer.fit(Model(run), datamodule=StreamingDataModule(train=dataset(run), batch_size=8, **module))
    return trainer


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def beside(checkpoint: Path) -> dict[str, Any]:
    return json.loads(Path(position_file(checkpoint)).read_text())


def test_it_says_what_the_checkpoint_says(run, tmp_path):
    run.every_steps, run.every_epoch, run.trainer = 5, True, {'max_steps': 20}
    train(run)
    checkpoints = sorted(run.checkpoints.glob('*.ckpt'))
    assert names(run.checkpoints) == {Path(name).name for c in checkpoints for name in (c, position_file(c))}
    for checkpoint in checkpoints:
        document = beside(checkpoint)
        loaded = torch.load(checkpoint, weights_only=True)
        assert document['checkpoint'] == checkpoint.name
        assert document['state'] == loaded['StreamingDataModule'] == loaded['callbacks']['headrace.position']
    document = beside(run.checkpoints / 'step15.ckpt')
    assert document['summary'][1:4] == [
        'Next: sample 16 of 101, epoch 1.',
        'Next: global batch 15 of the run, of 8 samples.',
        'Finished: 1 epochs and 15 optimizer steps.',
    ]
    assert document['versions'] == {
        'headrace': headrace.__version__,
        'lightning': lightning.__version__,
        'torch': torch.__version__,
    }


@pytest.mark.parametrize(
    ('checkpoint', 'file'),
    [
        ('a/epoch=1-step=120.ckpt', 'a/epoch=1-step=120.headrace.json'),
        ('model.v1.5', 'model.v1.5.headrace.json'),
        ('s3://bucket/last.ckpt', 's3://bucket/last.headrace.json'),
    ],
)
def test_its_name(checkpoint, file):
    assert position_file(checkpoint) == file


def test_it_goes_with_its_checkpoint(run, tmp_path):
    folder = tmp_path / 'top'
    fit(run, ModelCheckpoint(folder, 'step{step}', every_n_train_steps=2, save_top_k=1, save_last=True))
    assert names(folder) == {'stepstep=8.ckpt', 'stepstep=8.headrace.json', 'last.ckpt', 'last.headrace.json'}
    assert beside(folder / 'last.ckpt')['state'] == beside(folder / 'stepstep=8.ckpt')['state']


def test_an_exception_leaves_it_too(run, tmp_path):
    run.crash_at = 5
    with pytest.raises(Crash):
        fit(run, ModelCheckpoint(tmp_path / 'top', save_on_exception=True))
    (checkpoint,) = (tmp_path / 'top').glob('*.ckpt')
    assert beside(checkpoint)['state']['trainer_batches'] == 5
    with pytest.raises(Crash):
        fit(run, OnExceptionCheckpoint(tmp_path / 'exception', 'exception'))
    assert names(tmp_path / 'exception') == {'exception.ckpt', 'exception.headrace.json'}


def test_it_lies_where_the_checkpoint_lies(run):
    trainer = fit(run, steps=3)
    trainer.save_checkpoint('memory://headrace-position/a.ckpt')
    store = fsspec.filesystem('memory')
    document = json.loads(store.cat('/headrace-position/a.headrace.json'))
    assert document['state']['trainer_batches'] == 3
    trainer.strategy.remove_checkpoint('memory://headrace-position/a.ckpt')
    assert not store.ls('/headrace-position')


def test_it_is_not_there_where_it_is_not_wanted(run, tmp_path):
    fit(run, ModelCheckpoint(tmp_path / 'off'), position_files=False)
    assert not list((tmp_path / 'off').glob('*.json'))
    trainer = fit(run, steps=1)
    trainer.save_checkpoint(tmp_path / 'weights' / 'a.ckpt', weights_only=True)
    assert names(tmp_path / 'weights') == {'a.ckpt'}


class Failing(TorchCheckpointIO):
    """Saves one checkpoint, and no other."""

    saved = 0

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.saved += 1
        if self.saved > 1:
            raise Crash
        super().save_checkpoint(*args, **kwargs)


def test_it_is_absent_rather_than_old(run, tmp_path):
    trainer = fit(run, plugins=Failing(), steps=2)
    path = tmp_path / 'a.ckpt'
    trainer.save_checkpoint(path)
    assert Path(position_file(path)).exists()
    with pytest.raises(Crash):
        trainer.save_checkpoint(path)
    assert names(tmp_path) >= {'a.ckpt'}
    assert not Path(position_file(path)).exists()


def test_its_failure_does_not_end_the_training(run, tmp_path):
    trainer = fit(run, steps=2)
    Path(position_file(tmp_path / 'a.ckpt')).mkdir()
    with pytest.warns(UserWarning, match=r'a.headrace.json could not be brought up to date'):
        trainer.save_checkpoint(tmp_path / 'a.ckpt')
    assert (tmp_path / 'a.ckpt').exists()


class Slow(TorchCheckpointIO):
    """Notes whether the file was there before its checkpoint."""

    was_early = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.05)
        self.was_early |= Path(position_file(path)).exists()
        super().save_checkpoint(checkpoint, path, *args, **kwargs)


def test_a_thread_that_writes_checkpoints_writes_it_after_them(run, tmp_path):
    slow = Slow()
    every = ModelCheckpoint(tmp_path / 'async', every_n_train_steps=1, save_top_k=-1, save_last=True)
    fit(run, every, plugins=AsyncCheckpointIO(slow))
    checkpoints = list((tmp_path / 'async').glob('*.ckpt'))
    assert len(checkpoints) == 9
    assert not slow.was_early
    for checkpoint in checkpoints:
        loaded = torch.load(checkpoint, weights_only=True)
        assert loaded['callbacks']['headrace.position'] == beside(checkpoint)['state']


def test_several_fits_and_modules_wrap_once(run, tmp_path):
    trainer = fit(run, steps=2)
    io = trainer.strategy.checkpoint_io
    trainer.fit_loop.epoch_loop.max_steps = 4
    trainer.fit(Model(run), datamodule=StreamingDataModule(train=dataset(run), batch_size=8))
    assert trainer.strategy.checkpoint_io is io
    assert isinstance(io.checkpoint_io, TorchCheckpointIO)


def test_two_ranks_write_one_file(run, tmp_path):
    run.devices, run.batch_size, run.strategy, run.every_steps = 2, 4, 'ddp', 5
    run.trainer = {'max_steps': 10}
    run_forked([run], tmp_path, ranks=2)
    assert names(run.checkpoints) == {f'step{n}.{end}' for n in (5, 10) for end in ('ckpt', 'headrace.json')}
    assert beside(run.checkpoints / 'step5.ckpt')['state']['position']['sample_in_epoch'] == 40


def test_explain_reads_it(run, tmp_path, capsys):
    config = tmp_path / 'mix.yaml'
    streams = {name: {'local': folder} for name, folder in run.streams.items()}
    config.write_text(json.dumps({'global_batch_size': 8, 'train': {'shuffle': True, 'streams': streams}}))
    run.every_steps, run.trainer = 5, {'max_steps': 5}
    train(run)
    file = position_file(run.checkpoints / 'step5.ckpt')
    assert main(['explain', str(config), '--state', file, '--batch', '5']) == 0
    assert 'Global batch 5 of epoch 0' in capsys.readouterr().out


def test_a_model_without_training_has_none(run, tmp_path):
    trainer = Trainer(accelerator='cpu', logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.validate(_Idle(), datamodule=StreamingDataModule(val=dataset(run), batch_size=8), verbose=False)
    trainer.save_checkpoint(tmp_path / 'a.ckpt')
    assert not Path(position_file(tmp_path / 'a.ckpt')).exists()


class _Idle(LightningModule):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> None:
        return None
