"""Proportions that follow losses under Composer: killed, resumed, and repeated without losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from composer.models import ComposerModel

from composer import Callback, Trainer
from headrace import STREAM, MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.composer import OnlineMixture, StreamingPosition, streaming_data_spec
from headrace.dataset import Stream
from headrace.metrics import PerStreamMean

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.losses = torch.nn.Linear(1, 1), PerStreamMean(['a', 'b'])

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layer(batch['id'].float()[:, None])

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        self.losses.update(batch['id'] / 50, batch[STREAM])
        return outputs.sum() * 0


class Seen(Callback):
    def __init__(self, stop: int) -> None:
        self.stop, self.ids = stop, dict[int, list[int]]()

    def before_forward(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == self.stop:
            raise InterruptedError
        self.ids[int(state.timestamp.batch)] = sorted(state.batch['id'].tolist())


def loader_of(folder: Path, workers: int = 0, **options: Any) -> StreamingDataLoader:
    streams = [Stream(local=str(folder / name), name=name, proportion=1) for name in 'ab']
    dataset = StreamingDataset(streams=streams, shuffle=True, epoch_size=96, batch_size=8, **options)
    return StreamingDataLoader(dataset, num_workers=workers, mark_streams=True)


def train(folder: Path, workers: int, *, stop: int = -1, load: str | None = None) -> tuple[dict[int, list[int]], Any]:
    seen, model, loader = Seen(stop), Model(), loader_of(folder, workers)
    trainer = Trainer(
        model=model,
        train_dataloader=streaming_data_spec(loader),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration='30ba',
        callbacks=[StreamingPosition(), OnlineMixture('losses', 4, rate=0.5), seen],
        load_path=load,
        save_folder=str(folder / 'saved'),
        save_filename='ba{batch}.pt',
        save_interval='5ba',
        save_overwrite=True,
        device='cpu',
        progress_bar=False,
        auto_log_hparams=False,
    )
    try:
        trainer.fit()
    except InterruptedError:
        assert stop >= 0
    trainer.close()
    return seen.ids, loader.dataset.run


def test_a_killed_run_goes_on_with_what_was_decided_and_is_repeated_without_losses(tmp_path: Path) -> None:
    for number, name in enumerate('ab'):
        with MDSWriter(out=str(tmp_path / name), columns={'id': 'int'}, size_limit=200) as writer:
            for i in range(50):
                writer.write({'id': 50 * number + i})
    first, _ = train(tmp_path, 0, stop=13)
    second, run = train(tmp_path, 1, load=str(tmp_path / 'saved' / 'ba10.pt'))
    assert [*second] == list(range(10, 30))
    assert (second[10], second[11]) == (first[10], first[11])
    assert [one.at for one in run.decisions] == [32 * n for n in range(1, 8)]
    replayed = loader_of(tmp_path, decisions=run.decisions)
    batches = [sorted(batch['id'].tolist()) for _ in range(3) for batch in replayed][:30]
    assert dict(enumerate(batches)) == {**{step: first[step] for step in range(10)}, **second}
