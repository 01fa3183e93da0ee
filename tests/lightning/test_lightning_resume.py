"""Resuming in one process: every kind of checkpoint, with every option of the trainer that moves its counters."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_oracle import Verdict, judge, records
from lightning_run import EPOCHS, Crash, Run, train

logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
pytestmark = [pytest.mark.filterwarnings('ignore')]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Two or more runs, each from a checkpoint of the one before."""

    id: str
    first: dict[str, Any]
    """Fields of the first run."""
    checkpoint: str
    """The file to go on from."""
    second: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields in which the second run differs."""
    mix: str = 'even'
    epochs: int = EPOCHS
    position: int = 0
    limit: int | None = None
    batches: int | None = None
    """How many, if it is known."""


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


def both(**options: Any) -> dict[str, Any]:
    return {'trainer': options}


CASES = [
    *(Case(id=kind, first=first, checkpoint=file) for kind, (first, file) in KINDS.items()),
    *(
        Case(id=f'{kind}-max-steps', first={**first, 'trainer': {**first.get('trainer', {}), **STEPS}}, checkpoint=file)
        for kind, (first, file) in KINDS.items()
    ),
    *(
        Case(id=f'{kind}-batch-doubled', first=first, checkpoint=file, second={'batch_size': 16, 'trainer': {}})
        for kind, (first, file) in KINDS.items()
    ),
    *(
        Case(id=f'{kind}-batch-halved', first=first, checkpoint=file, second={'batch_size': 4, 'trainer': {}})
        for kind, (first, file) in KINDS.items()
    ),
    *(
        Case(id=f'{kind}-batch-7', first=first, checkpoint=file, second={'batch_size': 7})
        for kind, (first, file) in KINDS.items()
    ),
    *(
        Case(id=f'{kind}-uneven', first={**first, 'every_steps': first.get('every_steps') and first['every_steps']}, checkpoint=file, mix='uneven')
        for kind, (first, file) in KINDS.items()
        if kind in ('step', 'exception', 'step-epoch-1')
    ),
    *(
        Case(id=f'{kind}-estimated-stepping-batches', first={**first, 'estimated': True}, checkpoint=file)
        for kind, (first, file) in KINDS.items()
    ),
    *(
        Case(
            id=f'{kind}-reload-every-epoch',
            first={**first, 'trainer': {**first.get('trainer', {}), 'reload_dataloaders_every_n_epochs': 1}},
            checkpoint=file,
        )
        for kind, (first, file) in KINDS.items()
    ),
    *(
        Case(id=f'{kind}-accumulate', first={**first, **both(accumulate_grad_batches=2)}, checkpoint=file)
        for kind, first, file in [
            ('step', {'every_steps': 2, 'crash_at': 17}, 'step4'),
            ('last-batch', {'every_steps': 6, 'crash_at': 17}, 'step6'),
            ('epoch-end', EPOCH, 'epoch0'),
            ('exception-between', RAISE, 'exception'),
            ('exception-at-a-step', {'on_exception': True, 'crash_at': 6}, 'exception'),
            ('exception-first', {'on_exception': True, 'crash_at': 1}, 'exception'),
            ('exception-first-of-epoch-1', {'on_exception': True, 'crash_at': 13}, 'exception'),
        ]
    ),
    Case(
        id='exception-accumulate-5',  # 12 batches: steps after 5, 10 and 12
        first={'on_exception': True, 'crash_at': 20, **both(accumulate_grad_batches=5)},
        checkpoint='exception',
    ),
    *(
        Case(id=f'{kind}-limit-train-batches', first={**first, **both(limit_train_batches=8)}, checkpoint=file, limit=8)
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
        id='limit-train-batches-half',
        first={**STEP, **both(limit_train_batches=0.5)},
        checkpoint='step10',
        limit=6,
    ),
    Case(id='drop-last', first={**STEP, 'module': {'drop_last': True}}, checkpoint='step5', mix='uneven'),
    Case(
        id='drop-last-batch-7',
        first={**STEP, 'module': {'drop_last': True}},
        second={'batch_size': 7},
        checkpoint='step5',
        mix='uneven',
    ),
    Case(
        id='max-steps-mid-epoch-at-train-end',  # Lightning counts the epoch as finished
        first={'every_epoch': True, **both(max_steps=7, max_epochs=-1)},
        checkpoint='epoch0',
        second=both(max_epochs=EPOCHS),
    ),
    Case(
        id='max-steps-mid-epoch-more-steps',
        first={'every_epoch': True, **both(max_steps=7, max_epochs=-1)},
        checkpoint='epoch0',
        second=both(max_steps=20, max_epochs=-1),
        epochs=1,
        position=64,
    ),
    Case(id='max-steps-and-epochs', first={**EPOCH, **both(max_steps=30)}, checkpoint='epoch0', epochs=2, position=48),
    Case(
        id='validation-fails',
        first={'on_exception': True, 'validate': True, 'crash_in_validation': 4, **both(val_check_interval=5)},
        checkpoint='exception',
        second={'crash_in_validation': None},
    ),
    Case(
        id='last-validation-of-an-epoch-fails',
        first={'on_exception': True, 'validate': True, 'crash_in_validation': 4},
        checkpoint='exception',
        second={'crash_in_validation': None},
    ),
    Case(id='prefetching-workers', first={**RAISE, 'workers': 2}, checkpoint='exception'),
    Case(id='workers-after-none', first=STEP, checkpoint='step15', second={'workers': 2}),
    Case(
        id='persistent-workers',
        first={**STEP, 'workers': 2, 'module': {'persistent_workers': True}},
        checkpoint='step5',
    ),
]


def run_case(case: Case, mixes: dict[str, dict[str, str]], out: Path) -> tuple[Verdict, Run, Run]:
    common = {'out': str(out), 'streams': mixes[case.mix]}
    first = Run(name='first', **common, **case.first)
    if first.crash_at is not None or first.crash_in_validation is not None:
        with pytest.raises(Crash):
            train(first)
    else:
        train(first)
    checkpoint = first.checkpoints / f'{case.checkpoint}.ckpt'
    second = Run(
        **{**dataclasses.asdict(first), 'crash_at': None, **case.second, 'name': 'second', 'checkpoint': str(checkpoint)}
    )
    train(second)
    return judge([(first, checkpoint), (second, None)], limit=case.limit), first, second


@pytest.fixture(scope='module')
def table() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    print('\n'.join(['', 'Lightning, one process', *lines]))


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.id)
def test_a_resumed_run_continues_exactly(case, mixes, tmp_path, table):
    verdict, _, second = run_case(case, mixes, tmp_path)
    table.append(f'{case.id:<45} {verdict}')
    assert verdict.is_exact, verdict
    assert (verdict.epochs, verdict.position) == (case.epochs, case.position)
    ends = [record['epoch'] for record in records(second, 'hook')[0] if record['hook'] == 'epoch_end']
    assert len(ends) == len(set(ends)), 'an epoch ended twice'
    (end,) = records(second, 'hook')[0][-1:]
    if 'accumulate' not in case.id:
        assert end['step'] == end['logged'] == verdict.trained, 'the loggers count other steps than the optimizer'
