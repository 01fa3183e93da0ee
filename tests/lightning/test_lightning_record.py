"""The record of a run under Lightning: what it says of each step is what the model was given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from headrace import StreamingDataset
from headrace.errors import ConfigError
from headrace.lightning import RunRecord, StreamingDataModule
from headrace.watching import RecordedRun
from tests.support.trainers.lightning_statistics import Model, trainer
from tests.support.trainers.statistics_mix import mix

pytestmark = [pytest.mark.filterwarnings('ignore')]


class Killed(Exception):
    pass


class Dies(Model):
    """Raises in a step, counted from 0."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__()
        self.step, self.batches = step, []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if len(self.batches) == self.step:
            raise Killed
        self.batches.append(batch['id'].tolist())
        return super().training_step(batch, batch_idx)


def fit(data: StreamingDataset, folder, model: Dies, *, resume: bool = False, **options: Any) -> None:
    saving = ModelCheckpoint(folder, filename='{step}', every_n_train_steps=6, save_top_k=-1)
    run = trainer(folder, RunRecord(), saving, enable_checkpointing=True, max_epochs=2, **options)
    module = StreamingDataModule(train=data)
    last = str(max(folder.glob('*.ckpt'), key=lambda path: path.stat().st_mtime)) if resume else None
    if model.step is None:
        run.fit(model, datamodule=module, ckpt_path=last)
        return
    with pytest.raises(Killed):
        run.fit(model, datamodule=module, ckpt_path=last)


@pytest.mark.parametrize('accumulate', [1, 4])
def test_each_step_is_the_one_that_the_model_was_given(mixes, tmp_path, accumulate):
    first, second = Dies(9), Dies()
    options = {'accumulate_grad_batches': accumulate}
    if accumulate == 1:
        fit(mix(mixes['uneven'], batch_size=8), tmp_path, first)
        resumed = 6
    else:
        first.step, resumed = 30, 24  # 6 optimizer steps
        fit(mix(mixes['uneven'], batch_size=4), tmp_path, first, **options)
    fit(mix(mixes['uneven'], batch_size=8 if accumulate == 1 else 4), tmp_path, second, resume=True, **options)
    run = RecordedRun(tmp_path)
    assert [segment.first_step for segment in run.history.segments] == [0, resumed]
    assert run.history.segments[0].checkpoints[-1] == resumed
    trained = {**dict(enumerate(first.batches)), **dict(enumerate(second.batches, resumed))}
    for step, ids in trained.items():
        assert run.step(step).report.batches[0].ids.tolist() == ids, step
    assert run.history.segments[1].reached == max(trained) + 1
    assert [segment.has_ended for segment in run.history.segments] == [False, True]
    assert run.history.segments[0].reached == len(first.batches)
    (status,) = (tmp_path / 'headrace-status').iterdir()
    found = json.loads(status.read_text())
    assert (found['state'], found['step'], found['rank']) == ('ended', max(trained) + 1, 0)


def test_several_loaders_have_places_of_their_own(mixes, tmp_path):
    short, long = mixes['even'].values()
    data = StreamingDataModule(train={'a': {'local': short}, 'b': {'local': long}}, batch_size=12)  # 5 and 3 batches

    class OfTwo(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append({name: part['id'].tolist() for name, part in batch.items()})
            return self.layer(batch['a']['row']).mean()

    seen: list[dict[str, list[int]]] = []
    trainer(tmp_path, RunRecord(tmp_path / 'run', status_every=None), max_epochs=2).fit(OfTwo(), datamodule=data)
    assert len(seen) == 10
    for name, first in (('a', 0), ('b', 60)):
        run = RecordedRun(tmp_path / 'run', loader=name)
        for step, ids in enumerate(seen):
            assert [first + i for i in run.step(step).report.batches[0].ids.tolist()] == ids[name], (name, step)
    with pytest.raises(ConfigError, match="training loaders a, b, got 'c'"):
        RecordedRun(tmp_path / 'run', loader='c')
    assert not (tmp_path / 'run' / 'headrace-status').exists()


def test_other_loaders_are_refused_before_the_first_step(mixes, tmp_path):
    plain = DataLoader(StreamingDataset(local=mixes['even']['a'], batch_size=8), batch_size=8)
    with pytest.raises(ConfigError, match='the training data is DataLoader'):
        trainer(tmp_path, RunRecord(tmp_path)).fit(Model(), plain)
