"""A loss spike of a packed run under Composer: its files, its documents, the run without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback
from composer.loggers import InMemoryLogger

from composer import ComposerModel, Trainer
from headrace.composer import DataStatistics, LossSpikes, StreamingPosition, streaming_data_spec
from tests.support.packings.packed_streams import SIZE, unpadded
from tests.support.trainers.packed_story import (
    SPIKE,
    STEPS,
    batches_of,
    check_resumed,
    check_story,
    documents_in,
    without,
    write_run,
)

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]


class Model(ComposerModel):
    """Its loss is 100 for one batch, else 2."""

    def __init__(self, bad: list[list[int]]) -> None:
        super().__init__()
        self.layer, self.bad = torch.nn.Linear(SIZE, 1), bad
        self.trained: list[list[list[int]]] = []

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.trained.append(unpadded(batch))
        return self.layer(batch['input_ids'].float()).mean() * 0

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return outputs + (100.0 if self.trained[-1] == self.bad else 2.0)


def train(config: Any, folder: Path, bad: list[list[int]], duration: int, *callbacks: Callback, **options: Any):
    model, logger = Model(bad), InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=streaming_data_spec(config, count_padding=False),
        callbacks=[StreamingPosition(), DataStatistics(1), LossSpikes(warmup=3, folder=str(folder)), *callbacks],
        loggers=[logger],
        max_duration=f'{duration}ba',
        progress_bar=False,
        device='cpu',
        **options,
    )
    trainer.fit()
    trainer.close()
    return model, {name: entries[-1][1] for name, entries in logger.data.items()}


def test_a_spike_of_a_packed_run_is_told_in_documents(tmp_path):
    path = write_run(tmp_path)
    bad = batches_of(path)[SPIKE]
    saving = {'save_folder': str(tmp_path), 'save_filename': 'ba{batch}.pt', 'save_interval': f'{SPIKE - 1}ba'}
    model, logged = train(path, tmp_path, bad, STEPS, **saving)
    check_story(path, tmp_path, model.trained, logged)
    documents = documents_in(bad)
    resumed, _ = train(
        without(path, documents), tmp_path / 'later', bad, STEPS, load_path=str(tmp_path / f'ba{SPIKE - 1}.pt')
    )
    check_resumed(path, resumed.trained, documents)
