"""The record of a run under Composer: what it says of each step is what the model was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback

from composer import Trainer
from headrace.composer import RunRecord, StreamingPosition, streaming_data_spec
from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError
from headrace.watching import RecordedRun
from tests.support.trainers.composer_legs import Linear
from tests.support.trainers.composer_runs import make_data
from tests.support.trainers.statistics_mix import mix

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]


class Batches(Callback):
    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.batches.append(state.batch['id'].tolist())


def train(dataset: StreamingDataset, record: RunRecord, **options: Any) -> list[list[int]]:
    """The ids of each batch."""
    model, seen = Linear(), Batches()
    trainer = Trainer(
        model=model,
        train_dataloader=streaming_data_spec(dataset, batch_size=8),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        callbacks=[StreamingPosition(), record, seen],
        device='cpu',
        progress_bar=False,
        **{'max_duration': '2ep', **options},
    )
    try:
        trainer.fit()
    finally:
        trainer.close()
    return seen.batches


def test_each_step_is_the_one_that_the_model_was_given(tmp_path: Path) -> None:
    folders = {name: make_data(tmp_path / name, size) for name, size in {'a': 60, 'b': 36}.items()}
    saved = tmp_path / 'checkpoints'
    saving = {'save_folder': str(saved), 'save_filename': 'ba{batch}.pt', 'save_interval': '5ba'}
    first = train(mix(folders), RunRecord(), max_duration='17ba', **saving)
    second = train(mix(folders), RunRecord(str(saved)), load_path=str(saved / 'ba15.pt'))
    run = RecordedRun(saved)
    assert [segment.first_step for segment in run.history.segments] == [0, 15]
    assert set(run.history.segments[0].checkpoints) >= {5, 10, 15}
    assert len(second) == 9
    for step, ids in enumerate([*first[:15], *second]):
        batch = run.step(step).report.batches[0]
        stored = [i if stream == 0 else i - 60 for i, stream in zip(batch.ids.tolist(), batch.streams, strict=True)]
        assert stored == ids, step
    assert [one.segment.number for one in run.history.trained(16)] == [1, 2]


def test_the_status_says_whether_the_training_failed(tmp_path: Path) -> None:
    class Fails(RunRecord):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if int(state.timestamp.batch) == 3:
                raise RuntimeError('the third batch')

    data = StreamingDataset(local=make_data(tmp_path / 'a', 32), batch_size=8)
    status = tmp_path / 'run' / 'headrace-status' / 'rank-00000.json'
    train(data, RunRecord(str(tmp_path / 'run')))
    assert json.loads(status.read_text())['state'] == 'ended'
    data = StreamingDataset(local=str(tmp_path / 'a'), batch_size=8)
    with pytest.raises(RuntimeError, match='the third batch'):
        train(data, Fails(str(tmp_path / 'failed')))
    found = json.loads((tmp_path / 'failed' / 'headrace-status' / 'rank-00000.json').read_text())
    assert (found['state'], found['step']) == ('failed', 3)


def test_a_run_without_a_folder_is_refused(tmp_path: Path) -> None:
    data = StreamingDataset(local=make_data(tmp_path / 'a', 16), batch_size=8)
    with pytest.raises(ConfigError, match='RunRecord writes beside the checkpoints'):
        train(data, RunRecord())
