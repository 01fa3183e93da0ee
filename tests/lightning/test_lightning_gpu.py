"""Training on a GPU. Lightning does not wait for its copies of batches. The tests skip without a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.trainers.lightning_oracle import judge
from tests.support.trainers.lightning_run import EPOCHS, Crash, Run, train

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU'),
    pytest.mark.filterwarnings('ignore'),
]


COPIES = [{'pin_memory': False}, {'pin_memory': True}, {'device': 'cuda'}]


@pytest.mark.parametrize('copies', COPIES, ids=['pageable', 'pinned', 'ahead'])
@pytest.mark.parametrize('workers', [0, 2])
def test_a_run_on_a_gpu_continues_exactly(mixes, tmp_path, workers, copies):
    first = Run(
        name='first',
        out=str(tmp_path),
        streams=mixes['uneven'],
        workers=workers,
        every_steps=5,
        crash_at=17,
        trainer={'accelerator': 'gpu'},
        module=copies,
    )
    with pytest.raises(Crash):
        train(first)
    checkpoint = first.checkpoints / 'step15.ckpt'
    second = dataclasses.replace(first, name='second', crash_at=None, checkpoint=str(checkpoint))
    _, model = train(second)
    verdict = judge([(first, checkpoint), (second, None)])
    assert verdict.is_exact, verdict
    assert (verdict.epochs, verdict.position) == (EPOCHS, 0)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
