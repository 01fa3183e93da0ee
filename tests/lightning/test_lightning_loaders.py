"""Checks of a training's loaders before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace import StreamingDataLoader
from headrace.errors import ResumeError
from tests.support.trainers.data_modules import quiet
from tests.support.trainers.lightning_run import Model, Run, dataset, train

pytestmark = [pytest.mark.filterwarnings('ignore')]


def test_other_data_is_refused_before_the_first_step(run, mixes, tmp_path):
    run.every_steps, run.trainer = 5, {'max_epochs': 1}
    train(run)
    other = Run(
        name='other', out=str(tmp_path), streams=mixes['uneven'], checkpoint=str(run.checkpoints / 'step5.ckpt')
    )
    with pytest.raises(ResumeError, match='epoch_size'):
        train(other)
    assert not Path(tmp_path, 'other.rank0.jsonl').exists()


@pytest.mark.parametrize('loader_class', [StreamingDataLoader, torch.utils.data.DataLoader])
def test_a_sampler_of_ones_own_is_refused_before_the_first_step(loader_class, run):
    """In the hook of a model, or passed to `fit`: the loader cannot even be made."""

    class Sampling(Model):
        def train_dataloader(self):
            data = dataset(run, batch_size=8)
            sampler = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
            return loader_class(data, batch_size=8, sampler=sampler)

    with pytest.raises(ValueError, match=r'sampler'):
        quiet(run).fit(Sampling(run))
    assert not Path(run.out, 'run.rank0.jsonl').exists()
