"""Proportions that follow losses under Lightning: killed, resumed on other workers, and repeated without losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from headrace import STREAM, Stream, StreamingDataLoader, StreamingDataset
from headrace.lightning import OnlineMixture, StreamingDataModule
from headrace.metrics import PerStreamMean
from headrace.mixing import build_loader, load_config

pytestmark = [pytest.mark.filterwarnings('ignore')]


class Model(LightningModule):
    def __init__(self, stop: int) -> None:
        super().__init__()
        self.layer, self.losses = torch.nn.Linear(1, 1), PerStreamMean(['first', 'second'])
        self.stop, self.seen = stop, dict[int, list[int]]()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.stop:
            raise InterruptedError
        self.seen[self.global_step] = sorted(batch['id'].tolist())
        self.losses.update(batch['id'] / 50, batch[STREAM])
        return self.layer(batch['id'].float()[:, None]).sum() * 0

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def config(mixes: Any, workers: int = 0, **train: Any) -> dict[str, Any]:
    streams = dict(zip(('first', 'second'), mixes['even'].values(), strict=True))
    return {
        'global_batch_size': 8,
        'train': {
            'shuffle': True,
            'epoch_size': 96,
            'streams': {name: {'local': folder, 'proportion': 1} for name, folder in streams.items()},
            'loader': {'mark_streams': True, 'num_workers': workers},
            **train,
        },
    }


def train(settings: Any, out: Path, *, stop: int = -1, checkpoint: str | None = None) -> dict[int, list[int]]:
    model = Model(stop)
    saving = ModelCheckpoint(dirpath=out, every_n_train_steps=5, save_top_k=-1, filename='{step}')
    trainer = Trainer(
        accelerator='cpu',
        max_steps=30,
        callbacks=[OnlineMixture('losses', 4, rate=0.5), saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(model, StreamingDataModule(settings), ckpt_path=checkpoint)
    except InterruptedError:
        assert stop >= 0
    return model.seen


def test_a_killed_run_goes_on_with_what_was_decided_and_is_repeated_without_losses(mixes: Any, tmp_path: Path) -> None:
    first = train(config(mixes), tmp_path, stop=13)
    second = train(config(mixes, workers=1), tmp_path, checkpoint=str(tmp_path / 'step=10.ckpt'))
    assert [*second] == list(range(10, 30))
    assert second[10] == first[10]
    assert second[11] == first[11]  # the next decision is by the losses since the checkpoint
    state = torch.load(tmp_path / 'step=30.ckpt', weights_only=False)
    position = state['callbacks']['headrace.position']
    settings = load_config(config(mixes)).train
    assert settings is not None
    loader = build_loader(settings)
    loader.load_state_dict(position['position'])
    decisions = loader.dataset.run.decisions
    assert [one.at for one in decisions] == [32 * n for n in range(1, 8)]
    assert decisions[-1].what['proportions']['second'] > 0.9
    dataset = StreamingDataset(
        streams=[Stream(local=one.local, name=one.name, proportion=1) for one in loader.dataset.streams],
        shuffle=True,
        epoch_size=96,
        batch_size=8,
        decisions=position,
    )
    replayed = StreamingDataLoader(dataset)
    batches = [sorted(batch['id'].tolist()) for _ in range(3) for batch in replayed][:30]
    assert dict(enumerate(batches)) == {**{step: first[step] for step in range(10)}, **second}
