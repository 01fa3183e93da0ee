"""Planted secrets are in no hyperparameters, logs or checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

from headrace import Stream, StreamingDataset
from headrace.errors import HeadraceError
from headrace.lightning import StreamingDataModule
from tests.support.suite.planted import (
    SIGNATURE,
    TOKEN,
    USER,
    found_in,
    found_in_error,
    found_in_files,
    planted_url,
    register_planted_store,
)


class Model(BoringModel):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch['row'].repeat(1, 8)).sum()


@pytest.fixture
def remote(make_dataset: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    register_planted_store(monkeypatch)
    monkeypatch.setenv('PLANTED', USER)
    return planted_url(make_dataset('data', 40))


def fit(module: StreamingDataModule, folder: Path) -> None:
    trainer = Trainer(
        default_root_dir=folder,
        logger=CSVLogger(folder),
        max_steps=4,
        limit_val_batches=0,
        accelerator='cpu',
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), datamodule=module)
    trainer.save_checkpoint(folder / 'last.ckpt')


def source(remote: str, folder: Path) -> dict[str, Any]:
    return {
        'remote': remote,
        'local': f'{folder}/cache',
        'endpoint_url': f'http://{USER}@host/?sig={SIGNATURE}',
        'store_options': {'api_token': TOKEN},
    }


@pytest.mark.parametrize('kind', ['mapping', 'file', 'keywords', 'dataset'])
def test_hyperparameters_and_checkpoints(kind: str, remote: str, tmp_path: Path) -> None:
    given = source(remote, tmp_path)
    if kind == 'mapping':
        module = StreamingDataModule({'global_batch_size': 4, 'train': given})
    elif kind == 'file':
        given['remote'] = remote.replace(USER, '${oc.env:PLANTED}')
        (tmp_path / 'mix.yaml').write_text(json.dumps({'global_batch_size': 4, 'train': {**given}}))
        module = StreamingDataModule(tmp_path / 'mix.yaml')
    elif kind == 'keywords':
        module = StreamingDataModule(train={'streams': [Stream(**given)]}, batch_size=4)
    else:
        module = StreamingDataModule(train=StreamingDataset(streams=[Stream(**given)], batch_size=4))

    fit(module, tmp_path / 'out')

    assert not found_in(str(dict(module.hparams)) + str(module.state_dict()) + repr(module))
    assert {path.suffix for path in (tmp_path / 'out').rglob('*.*')} >= {'.ckpt', '.json', '.yaml'}
    assert not found_in_files(tmp_path / 'out')
    if kind != 'keywords':
        assert 'planted://reader:***@host' in str(dict(module.hparams))


def test_a_store_that_fails(remote: str, tmp_path: Path) -> None:
    given = source(remote, tmp_path)
    for shard in (tmp_path / 'data').glob('*.mds'):
        shard.unlink()

    with pytest.raises(HeadraceError, match=r'planted://reader:\*\*\*@host') as failed:
        fit(StreamingDataModule({'global_batch_size': 4, 'train': given}), tmp_path / 'out')

    assert not found_in_error(failed.value)
