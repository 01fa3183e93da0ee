"""Jobs that SLURM preempts: the checkpoint at its signal, and the requeued job that continues from there."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch import Trainer
from test_lightning_processes import rank_program

from headrace.lightning.requeue import RequeueCallback, act_on_signals_between_batches
from tests.support.programs.processes import Program, clean_environment
from tests.support.programs.waiting import until
from tests.support.servers.process import free_port
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import Run, train

pytestmark = [pytest.mark.filterwarnings('ignore')]


def slurm(folder: Path, *, rank: int = 0, ranks: int = 1) -> dict[str, str]:
    """The environment of a task of a Slurm batch job, with a `scontrol` on PATH.

    A real `scontrol requeue` has Slurm end the tasks of the job with SIGTERM; this one does that to its caller.
    """
    program = folder / 'bin' / 'scontrol'
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/scontrol.log\nkill -TERM $PPID\n')
    program.chmod(0o755)
    return {
        'PATH': f'{program.parent}:{os.environ["PATH"]}',
        'SLURM_JOB_ID': '4217',
        'SLURM_JOB_NAME': 'train',
        'SLURM_NTASKS': str(ranks),
        'SLURM_NTASKS_PER_NODE': str(ranks),
        'SLURM_NNODES': '1',
        'SLURM_NODELIST': '127.0.0.1',
        'SLURM_NODEID': '0',
        'SLURM_PROCID': str(rank),
        'SLURM_LOCALID': str(rank),
    }


def job(mixes: dict[str, dict[str, str]], folder: Path, **fields: Any) -> Run:
    trainer = {'default_root_dir': str(folder / 'job'), **fields.pop('trainer', {})}
    return Run(name='first', out=str(folder), streams=mixes['even'], trainer=trainer, **fields)


def requeued(run: Run) -> Run:
    """The same job again: nobody tells it what to continue from."""
    return dataclasses.replace(run, name='second', signal_in=None)


@pytest.fixture
def in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in slurm(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


PLACES = {
    'the transfer of the first batch': 'on_before_batch_transfer:0',
    'the transfer': 'on_before_batch_transfer:7',
    'on_train_batch_start': 'on_train_batch_start:7',
    'the step': 'training_step:7',
    'the step, epoch 1': 'training_step:17',
    'the optimizer, weights changed': 'optimizer_step:7',
    'the optimizer, last batch': 'optimizer_step:11',
    'on_train_batch_end': 'on_train_batch_end:7',
    'on_train_batch_end of the last batch': 'on_train_batch_end:11',
    'on_train_epoch_end': 'on_train_epoch_end:0',
    'on_train_epoch_start': 'on_train_epoch_start:1',
    'validation': 'validation_step:3',
    'the last validation batch': 'validation_step:11',
}


def places():
    """All of them with a step for each batch, and those in a step and behind it with a step for two."""
    for place, accumulate in itertools.product(PLACES, [1, 2]):
        is_usual = accumulate == 1 or place in ('the step, epoch 1', 'on_train_batch_end')
        yield pytest.param(place, accumulate, marks=[] if is_usual else pytest.mark.slow)


@pytest.mark.parametrize(('place', 'accumulate'), list(places()))
def test_a_requeued_job_continues_exactly(place, accumulate, in_a_job, mixes):
    first = job(
        mixes,
        in_a_job,
        validate=True,
        signal_in=f'{PLACES[place]}:SIGUSR1',
        trainer={'accumulate_grad_batches': accumulate},
    )
    with pytest.raises(SystemExit):
        train(first)
    checkpoint = in_a_job / 'job' / 'hpc_ckpt_1.ckpt'
    assert Path(in_a_job, 'scontrol.log').read_text() == 'requeue 4217\n'
    second = requeued(first)
    train(second)
    verdict = judge([(first, checkpoint), (second, None)])
    assert verdict.is_exact, verdict
    assert (verdict.epochs, verdict.position) == (3, 0)
    if accumulate == 1:
        assert weights(second) == weights_of_uninterrupted(first)


def weights_of_uninterrupted(run: Run) -> list[float]:
    whole = dataclasses.replace(run, name='whole', signal_in=None)
    whole.trainer = {**run.trainer, 'default_root_dir': str(Path(run.out, 'whole-job'))}
    train(whole)
    return weights(whole)


def weights(run: Run) -> list[float]:
    """The weights at the end: they also tell of a batch whose gradients are twice in a checkpoint."""
    return records(run, 'hook')[0][-1]['weights']


def test_sigterm_ends_a_job_at_a_place_to_continue_from(in_a_job, mixes):
    first = job(mixes, in_a_job, on_exception=True, signal_in='training_step:7:SIGTERM')
    with pytest.raises(SystemExit):
        train(first)
    checkpoint = first.checkpoints / 'exception.ckpt'
    assert torch.load(checkpoint, weights_only=True)['global_step'] == 8
    second = dataclasses.replace(requeued(first), checkpoint=str(checkpoint))
    train(second)
    verdict = judge([(first, checkpoint), (second, None)])
    assert verdict.is_exact, verdict
    assert verdict.epochs == 3


def test_signals_are_left_alone_where_no_job_is_requeued(in_a_job, mixes):
    """Lightning then sets no handler for the one, and its handler of SIGTERM only makes a note."""
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]
    first = job(mixes, in_a_job, fits=[1, 2])
    trainer, _ = train(first)
    assert sum(isinstance(callback, RequeueCallback) for callback in trainer.callbacks) == 1
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)] == before
    for environment in (SLURMEnvironment(auto_requeue=False), LightningEnvironment()):
        other = Trainer(accelerator='cpu', devices=1, plugins=[environment], logger=False, enable_checkpointing=False)
        act_on_signals_between_batches(other)
        assert not any(isinstance(callback, RequeueCallback) for callback in other.callbacks)


@pytest.mark.slow
def test_tasks_that_are_told_at_different_moments_save_together(mixes, tmp_path):
    """Two tasks as `srun` starts them. One is told a moment before the other, each wherever it happens to be."""
    first = job(
        mixes,
        tmp_path,
        devices=2,
        batch_size=4,
        strategy='ddp',
        on_exception=True,
        trainer={'max_epochs': 10_000},
    )
    port = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port())}
    with contextlib.ExitStack() as running:
        tasks = [start_task(first, tmp_path, rank, port, running) for rank in range(2)]
        wait_for_batches(first, 20, tasks)
        for task in tasks:
            os.kill(task.process.pid, signal.SIGUSR1)
            time.sleep(0.02)
        ended = [task.wait(100) for task in tasks]
    assert Path(tmp_path, 'scontrol.log').read_text() == 'requeue 4217\n', ended
    checkpoint = tmp_path / 'job' / 'hpc_ckpt_1.ckpt'
    steps = torch.load(checkpoint, weights_only=True)['global_step']
    second = requeued(first)
    second.trainer = {**first.trainer, 'max_epochs': -1, 'max_steps': steps + 40}
    with contextlib.ExitStack() as running:
        for task in [start_task(second, tmp_path, rank, port, running) for rank in range(2)]:
            done = task.wait(100)
            assert done.returncode == 0, done.stderr[-8000:]
    verdict = judge([(first, checkpoint), (second, None)])
    assert verdict.is_exact, verdict
    assert verdict.trained == steps + 40
    # Nothing is trained between the two checkpoints that SLURM's two signals make.
    assert torch.load(first.checkpoints / 'exception.ckpt', weights_only=True)['global_step'] == steps


def start_task(run: Run, folder: Path, rank: int, port: dict[str, str], running: contextlib.ExitStack) -> Program:
    command = rank_program([run], folder, [sys.executable])
    environ = {**clean_environment(), **port, **slurm(folder, rank=rank, ranks=2)}
    return running.enter_context(Program(command, cwd=folder, environ=environ))


def wait_for_batches(run: Run, batches: int, tasks: list[Program]) -> None:
    path = Path(run.out, f'{run.name}.rank0.jsonl')

    def have_come() -> bool:
        assert all(task.process.poll() is None for task in tasks), [task.wait().stderr for task in tasks]
        return path.exists() and path.read_text().count('\n') >= batches

    until(have_come, 120)
