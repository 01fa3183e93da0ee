"""Batches of an optimizer step that change by the epoch, where an epoch is resumed in its middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import Crash, Run, train

pytestmark = [pytest.mark.filterwarnings('ignore')]

SCHEDULE = {0: 1, 1: 3, 2: 4}  # of 12 batches; steps 12, 4 and 3


@pytest.fixture
def make(mixes: dict[str, dict[str, str]], tmp_path: Path):
    def make(name: str, **fields: Any) -> Run:
        return Run(name=name, out=str(tmp_path), streams=mixes['even'], accumulate=SCHEDULE, **fields)

    return make


def end(run: Run) -> dict[str, Any]:
    return next(record for record in records(run, 'hook')[0] if record['hook'] == 'fit_end')


@pytest.mark.parametrize(
    ('saved', 'checkpoint', 'crash_at'),
    [
        ({'on_exception': True}, 'exception', 17),  # batch 5 of epoch 1, two batches after a step
        ({'on_exception': True}, 'exception', 30),  # batch 6 of epoch 2
        ({'every_steps': 1}, 'step13', 20),
        ({'every_steps': 1}, 'step17', 33),
        ({'after_validation': True, 'validate': True, 'trainer': {'val_check_interval': 6}}, 'val14', 20),
    ],
)
def test_the_rest_of_an_epoch_steps_as_its_beginning_did(make, saved, checkpoint: str, crash_at: int) -> None:
    whole = make('whole')
    train(whole)
    first = make('first', crash_at=crash_at, **saved)
    with pytest.raises(Crash):
        train(first)
    file = first.checkpoints / f'{checkpoint}.ckpt'
    second = make('second', checkpoint=str(file), trainer=saved.get('trainer', {}), validate='validate' in saved)
    train(second)
    assert judge([(first, file), (second, None)]).is_exact
    assert end(second)['step'] == end(whole)['step'] == 19
    assert end(second)['logged'] == end(whole)['logged']
    assert end(second)['weights'] == pytest.approx(end(whole)['weights'], rel=1e-6)
