"""Resuming in one process: every kind of checkpoint, with every option of the trainer that moves its counters."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from headrace import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.lightning import StreamingDataModule
from tests.support.trainers.data_modules import quiet
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import EPOCHS, Crash, Model, Run, dataset, train
from tests.support.trainers.resume_oracle import Verdict

logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
pytestmark = [pytest.mark.filterwarnings('ignore')]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Two or more runs, each from a checkpoint of the one before."""

    id: str
    first: dict[str, Any]
    """Fields of the first run."""
    checkpoint: str
    """The file to continue from."""
    second: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields in which the second run differs."""
    mix: str = 'even'
    epochs: int = EPOCHS
    position: int = 0
    limit: int | None = None
    is_slow: bool = False


STEP = {'every_steps': 5, 'crash_at': 17}
LAST = {'every_steps': 12, 'crash_at': 17}
EPOCH = {'every_epoch': True, 'crash_at': 17}
VAL = {'after_validation': True, 'validate': True, 'crash_at': 17}
MID_VAL = {'after_validation': True, 'validate': True, 'crash_at': 17, 'trainer': {'val_check_interval': 5}}
RAISE = {'on_exception': True, 'crash_at': 7}
RAISE_LATER = {'on_exception': True, 'crash_at': 17}
RAISE_FIRST = {'on_exception': True, 'crash_at': 12}
STEPS = {'max_epochs': -1, 'max_steps': 36}
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    'step': (STEP, 'step5'),
    'step-epoch-1': (STEP, 'step15'),
    'last-batch': (LAST, 'step12'),
    'epoch-end': (EPOCH, 'epoch0'),
    'validation-end': (VAL, 'val12'),
    'mid-epoch-validation-end': (MID_VAL, 'val5'),
    'exception': (RAISE, 'exception'),
    'exception-epoch-1': (RAISE_LATER, 'exception'),
    'exception-first-batch': (RAISE_FIRST, 'exception'),
}


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Options of both runs, and differences of the second run.
    '': ({}, {}),
    'max-steps': ({'trainer': STEPS}, {}),
    'batch-doubled': ({}, {'batch_size': 16, 'trainer': {}}),
    'batch-halved': ({}, {'batch_size': 4, 'trainer': {}}),
    'batch-7': ({}, {'batch_size': 7}),
    'uneven': ({'streams': 'uneven'}, {}),
    'estimated-stepping-batches': ({'estimated': True}, {}),
    'reload-every-epoch': ({'trainer': {'reload_dataloaders_every_n_epochs': 1}}, {}),
}


def with_options(number: int, option: str, kind_number: int, kind: str) -> Case:
    (first, checkpoint), (common, second) = KINDS[kind], OPTIONS[option]
    first = {**first, **common, 'trainer': {**first.get('trainer', {}), **common.get('trainer', {})}}
    if option == 'uneven' and 'step12' in checkpoint:
        first, checkpoint = {**first, 'every_steps': 13}, 'step13'
    checkpoint = checkpoint.replace('val12', 'val13') if option == 'uneven' else checkpoint
    return Case(
        id=f'{kind} {option}'.rstrip(),
        first={name: value for name, value in first.items() if name != 'streams'},
        second=second,
        checkpoint=checkpoint,
        mix=common.get('streams', 'even'),
        is_slow=number > 1 and (number + kind_number) % 3 != 0,
    )


def both(**options: Any) -> dict[str, Any]:
    return {'trainer': options}


CASES = [
    *(
        with_options(number, option, kind_number, kind)
        for number, option in enumerate(OPTIONS)
        for kind_number, kind in enumerate(KINDS)
    ),
    *(
        Case(id=f'{kind} accumulate', first={**first, **both(accumulate_grad_batches=2)}, checkpoint=file)
        for kind, first, file in [
            ('step', {'every_steps': 2, 'crash_at': 17}, 'step4'),
            ('last-batch', {'every_steps': 6, 'crash_at': 17}, 'step6'),
            ('epoch-end', EPOCH, 'epoch0'),
            ('exception between', RAISE, 'exception'),
            ('exception at a step', {'on_exception': True, 'crash_at': 6}, 'exception'),
            ('exception first', {'on_exception': True, 'crash_at': 1}, 'exception'),
            ('exception first of epoch 1', {'on_exception': True, 'crash_at': 13}, 'exception'),
        ]
    ),
    Case(
        id='exception accumulate 5',  # 12 batches: steps after 5, 10 and 12
        first={'on_exception': True, 'crash_at': 20, **both(accumulate_grad_batches=5)},
        checkpoint='exception',
    ),
    *(
        Case(id=f'{kind} limit-train-batches', first={**first, **both(limit_train_batches=8)}, checkpoint=file, limit=8)
        for kind, first, file in [
            ('step', STEP, 'step5'),
            ('step-epoch-1', STEP, 'step10'),
            ('last-batch', {'every_steps': 8, 'crash_at': 17}, 'step8'),
            ('epoch-end', EPOCH, 'epoch0'),
            ('validation-end', VAL, 'val8'),
            ('exception', RAISE, 'exception'),
        ]
    ),
    Case(
        id='step limit-train-batches half',
        first={**STEP, **both(limit_train_batches=0.5)},
        checkpoint='step10',
        limit=6,
    ),
    Case(id='step drop-last', first={**STEP, 'module': {'drop_last': True}}, checkpoint='step5', mix='uneven'),
    Case(
        id='step drop-last batch-7',
        first={**STEP, 'module': {'drop_last': True}},
        second={'batch_size': 7},
        checkpoint='step5',
        mix='uneven',
    ),
    Case(
        id='epoch-end max-steps in mid-epoch, then epochs',  # Lightning counts the epoch as finished
        first={'every_epoch': True, **both(max_steps=7, max_epochs=-1)},
        checkpoint='epoch0',
        second=both(max_epochs=EPOCHS),
    ),
    Case(
        id='epoch-end max-steps in mid-epoch, then more steps',
        first={'every_epoch': True, **both(max_steps=7, max_epochs=-1)},
        checkpoint='epoch0',
        second=both(max_steps=20, max_epochs=-1),
        epochs=1,
        position=64,
    ),
    Case(
        id='epoch-end max-steps and max-epochs',
        first={**EPOCH, **both(max_steps=30)},
        checkpoint='epoch0',
        epochs=2,
        position=48,
    ),
    *(
        Case(
            id=f'exception in {name}',
            first={'on_exception': True, 'crash_in': crash},
            second={'crash_in': None},
            checkpoint='exception',
        )
        for name, crash in [
            ('the transfer', 'on_before_batch_transfer:7'),
            ('the first transfer', 'on_before_batch_transfer:0'),
            ('the first transfer of epoch 1', 'on_before_batch_transfer:12'),
            ('the last transfer', 'on_before_batch_transfer:11'),
            ('on_train_batch_start', 'on_train_batch_start:15'),
            ('on_train_batch_end', 'on_train_batch_end:7'),
            ('on_train_batch_end of the last batch', 'on_train_batch_end:11'),
            ('on_train_epoch_start', 'on_train_epoch_start:1'),
            ('on_train_epoch_end', 'on_train_epoch_end:0'),
        ]
    ),
    *(
        Case(
            id=f'exception in {name} validation',
            first={'on_exception': True, 'validate': True, 'crash_in_validation': 4, 'trainer': options},
            second={'crash_in_validation': None},
            checkpoint='exception',
        )
        for name, options in [('a', {'val_check_interval': 5}), ('the last', {}), ('the last, max-steps', STEPS)]
    ),
    Case(id='exception with prefetching workers', first={**RAISE, 'workers': 2}, checkpoint='exception'),
    Case(id='step then workers', first=STEP, checkpoint='step15', second={'workers': 2}),
    Case(
        id='step persistent workers',
        first={**STEP, 'workers': 2, 'module': {'persistent_workers': True}},
        checkpoint='step5',
        is_slow=True,
    ),
]


def run_case(case: Case, mixes: dict[str, dict[str, str]], out: Path) -> tuple[Verdict, Run, Run]:
    common = {'out': str(out), 'streams': mixes[case.mix]}
    first = Run(name='first', **common, **case.first)
    if (first.crash_at, first.crash_in, first.crash_in_validation) != (None, None, None):
        with pytest.raises(Crash):
            train(first)
    else:
        train(first)
    checkpoint = first.checkpoints / f'{case.checkpoint}.ckpt'
    second = Run(
        **{
            **dataclasses.asdict(first),
            'crash_at': None,
            **case.second,
            'name': 'second',
            'checkpoint': str(checkpoint),
        }
    )
    train(second)
    return judge([(first, checkpoint), (second, None)], limit=case.limit), first, second


@pytest.fixture(scope='module')
def table() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    print('\n'.join(['', 'Lightning, one process', *lines]))


@pytest.mark.parametrize(
    'case', [pytest.param(case, id=case.id, marks=[pytest.mark.slow] if case.is_slow else []) for case in CASES]
)
def test_a_resumed_run_continues_exactly(case, mixes, tmp_path, table):
    verdict, _, second = run_case(case, mixes, tmp_path)
    table.append(f'{case.id:<55} {verdict}')
    assert verdict.is_exact, verdict
    assert (verdict.epochs, verdict.position) == (case.epochs, case.position)
    hooks = records(second, 'hook')[0]
    ends = [record['epoch'] for record in hooks if record['hook'] == 'epoch_end']
    assert len(ends) == len(set(ends)), 'an epoch ended twice'
    if 'accumulate' not in case.id:
        end = hooks[-1]
        assert end['step'] == end['logged'] == verdict.trained, 'the loggers count other steps than the optimizer'


@pytest.mark.parametrize('accumulate', [1, pytest.param(5, marks=[pytest.mark.slow])])
def test_a_run_continues_from_any_step(accumulate, mixes, tmp_path, table):
    first = Run(
        name='first',
        out=str(tmp_path),
        streams=mixes['even'],
        every_steps=1,
        trainer={'accumulate_grad_batches': accumulate},
    )
    train(first)
    checkpoints = sorted(first.checkpoints.glob('*.ckpt'))
    assert len(checkpoints) == EPOCHS * -(-12 // accumulate)
    wrong: list[str] = []
    for checkpoint in checkpoints:
        second = dataclasses.replace(first, name=checkpoint.stem, every_steps=None, checkpoint=str(checkpoint))
        train(second)
        verdict = judge([(first, checkpoint), (second, None)])
        if not verdict.is_exact or (verdict.epochs, verdict.position) != (EPOCHS, 0):
            wrong.append(f'{checkpoint.stem}: {verdict}')
    table.append(f'{f"each of {len(checkpoints)} steps, accumulate {accumulate}":<55} {"; ".join(wrong) or "exact"}')
    assert not wrong


def test_a_run_may_crash_again_and_again_at_other_batch_sizes(mixes, tmp_path, table):
    legs: list[tuple[Run, Path | None]] = []
    for number, size in enumerate([8, 16, 7, 7, 4, 10]):
        run = Run(
            name=f'leg{number}',
            out=str(tmp_path),
            streams=mixes['uneven'],
            batch_size=size,
            on_exception=True,
            crash_at=5 if number < 5 else None,
            checkpoint=str(legs[-1][1]) if legs else None,
        )
        if run.crash_at is None:
            train(run)
        else:
            with pytest.raises(Crash):
                train(run)
        legs.append((run, run.checkpoints / 'exception.ckpt' if run.crash_at else None))
    verdict = judge(legs)
    table.append(f'{"five exceptions, global batch 8, 16, 7, 7, 4, 10":<55} {verdict}')
    assert verdict.is_exact, verdict
    assert (verdict.epochs, verdict.position) == (EPOCHS, 0)


def test_skipping_the_rest_of_an_epoch_is_resumed(mixes, tmp_path):
    common = {'out': str(tmp_path), 'streams': mixes['even']}
    whole = Run(name='whole', **common, every_epoch=True, skip_at=7)
    train(whole)
    rest = Run(name='rest', **common, checkpoint=str(whole.checkpoints / 'epoch0.ckpt'))
    train(rest)
    batches = [record['ids'] for record in records(whole)[0]]
    assert len(batches) == 7 + 12 + 12
    assert [record['ids'] for record in records(rest)[0]] == batches[7:]


def test_a_step_that_takes_its_batches_itself_is_resumed(mixes, tmp_path):
    class Iterating(Model):
        def training_step(self, dataloader_iter):  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().training_step(*next(dataloader_iter)[:2])

    first = Run(name='first', out=str(tmp_path), streams=mixes['even'], on_exception=True, crash_at=17)
    with pytest.raises(Crash):
        train(first, Iterating)
    checkpoint = first.checkpoints / 'exception.ckpt'
    second = dataclasses.replace(first, name='second', crash_at=None, checkpoint=str(checkpoint))
    train(second, Iterating)
    verdict = judge([(first, checkpoint), (second, None)])
    # Lightning numbers the batches from 0 at a resume, and says that it may.
    assert (verdict.lost, verdict.repeated, verdict.wrong_batches) == (0, 0, 0), verdict
    assert verdict.epochs == EPOCHS


@pytest.mark.parametrize('crash_at', [7, 17])
def test_manual_optimization_is_resumed(crash_at, mixes, tmp_path):
    common = {'out': str(tmp_path), 'streams': mixes['even'], 'manual': True}
    first = Run(name='first', **common, on_exception=True, crash_at=crash_at)
    with pytest.raises(Crash):
        train(first)
    checkpoint = first.checkpoints / 'exception.ckpt'
    second = dataclasses.replace(first, name='second', crash_at=None, checkpoint=str(checkpoint))
    train(second)
    verdict = judge([(first, checkpoint), (second, None)])
    assert verdict.is_exact, verdict
    assert verdict.epochs == EPOCHS
    assert records(second, 'hook')[0][-1]['logged'] == verdict.trained


class Seen(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.batches: list[str] = []
        self.inputs: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.batches.append(f'{batch_idx}: {batch}')
        self.inputs.append(batch)
        return self.layer(torch.ones(1)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ('options', 'kind'),
    [
        pytest.param(options, kind, marks=[] if number in (column, column + 1) else [pytest.mark.slow])
        for number, options in enumerate(
            [{}, {'limit_train_batches': 5}, {'limit_train_batches': 0.5}, {'overfit_batches': 5}]
        )
        for column, kind in enumerate(['one', 'min_size', 'max_size', 'max_size_cycle'])
    ],
)
def test_loaders_without_the_data_module_continue_from_any_step(run: Run, tmp_path: Path, kind: str, options) -> None:
    def fit(callbacks: list[Any], checkpoint: Path | None = None) -> list[str]:
        def bare(**more: Any) -> StreamingDataLoader:
            return StreamingDataLoader(dataset(run, **more), batch_size=8)

        data = bare() if kind == 'one' else CombinedLoader({'long': bare(), 'short': bare(epoch_size=56)}, kind)
        model, trainer = Seen(), quiet(run, max_epochs=3, enable_checkpointing=True, callbacks=callbacks, **options)
        trainer.fit(model, data, ckpt_path=checkpoint)
        return model.batches

    steps = ModelCheckpoint(tmp_path / 'steps', '{step}', every_n_train_steps=1, save_top_k=-1)
    whole = fit([steps])
    length = len(whole) // 3
    for step in (2, length - 1, length, length + 1, 2 * length):
        assert fit([], tmp_path / f'steps/step={step}.ckpt') == whole[step:], f'from step {step} of {len(whole)}'


class Combining(StreamingDataModule):
    """A user's, whose steps have a batch of other data, too."""

    def __init__(self, other: Any, mode: Any, **options: Any) -> None:
        super().__init__(**options)
        self._other, self._mode = other, mode

    def train_dataloader(self) -> Any:
        return CombinedLoader({'own': super().train_dataloader(), 'other': self._other}, self._mode)


@pytest.mark.parametrize('is_stateful', [False, True])
@pytest.mark.parametrize('batches', [5, 30])
@pytest.mark.parametrize('mode', ['min_size', 'max_size', 'max_size_cycle'])
def test_other_data_beside_the_modules_resumes_or_is_refused(
    run, tmp_path, mode: str, batches: int, is_stateful
) -> None:
    def fit(callbacks: list[Any], checkpoint: Path | None = None) -> list[str]:
        other: Any = DataLoader(range(batches))  # pyright: ignore[reportArgumentType]
        if is_stateful:
            other = StreamingDataLoader(dataset(run, epoch_size=batches), batch_size=1)
        data = Combining(other, mode, train=dataset(run), batch_size=8)
        model, trainer = Seen(), quiet(run, max_epochs=2, enable_checkpointing=True, callbacks=callbacks)
        trainer.fit(model, data, ckpt_path=checkpoint)
        return [str(batch['own']) for batch in model.inputs]

    steps = ModelCheckpoint(tmp_path / 'steps', '{step}', every_n_train_steps=1, save_top_k=-1)
    if batches > 12 and mode != 'min_size':
        with pytest.raises(ConfigError, match='cannot resume together with .*DataLoader: an epoch of 30 batches'):
            fit([steps])
        return
    if is_stateful:
        whole = fit([steps])
    else:
        with pytest.warns(UserWarning, match='not that of DataLoader'):
            whole = fit([steps])
    length = len(whole) // 2
    for step in (2, length, length + 1):
        assert fit([], tmp_path / f'steps/step={step}.ckpt') == whole[step:], f'from step {step} of {len(whole)}'
