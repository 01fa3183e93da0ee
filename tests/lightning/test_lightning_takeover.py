"""A training that began with mosaicml-streaming continues with headrace, from Lightning's checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning as L
from headrace import StreamingDataLoader, StreamingDataset
from headrace.lightning import StreamingDataModule

pytestmark = pytest.mark.lightning


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, _: int) -> Any:
        self.seen.append(batch['id'].tolist())
        return self.weight.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(data: Any, *callbacks: ModelCheckpoint, checkpoint: Path | None = None) -> list[list[int]]:
    trainer = L.Trainer(
        accelerator='cpu',
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=bool(callbacks),
        callbacks=list(callbacks),
    )
    model = Model()
    loaders = {'datamodule': data} if isinstance(data, L.LightningDataModule) else {'train_dataloaders': data}
    trainer.fit(model, **loaders, ckpt_path=checkpoint)
    return model.seen


@pytest.mark.parametrize('step', [5, 15])
def test_a_checkpoint_of_mosaicml_streaming_continues(
    step: int,
    make_dataset: Callable[..., Path],
    mosaicml_streaming: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = str(make_dataset(samples=96))
    options: dict[str, Any] = {'local': local, 'shuffle': True, 'shuffle_seed': 3, 'shuffle_algo': 'py1e'}
    theirs = mosaicml_streaming.StreamingDataset(batch_size=8, **options)
    save = ModelCheckpoint(tmp_path, '{step}', every_n_train_steps=5, save_top_k=-1)
    whole = fit(mosaicml_streaming.StreamingDataLoader(theirs, batch_size=8), save)

    saved = tmp_path / f'step={step}.ckpt'
    loader = StreamingDataLoader(StreamingDataset(batch_size=8, **options), batch_size=8)
    assert fit(loader, checkpoint=saved) == whole[step:]
    assert fit(StreamingDataModule(train=options, batch_size=8), checkpoint=saved) == whole[step:]
