"""Planted secrets are in no checkpoint, and in nothing that is logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from composer.loggers import FileLogger

from composer import Trainer
from headrace.composer import StreamingPosition, streaming_data_spec
from tests.support.suite.planted import (
    SIGNATURE,
    TOKEN,
    USER,
    found_in,
    found_in_files,
    planted_url,
    register_planted_store,
)
from tests.support.trainers.composer_legs import Linear

pytestmark = pytest.mark.composer


def test_checkpoints_and_logs(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    register_planted_store(monkeypatch)
    spec = streaming_data_spec(
        {
            'global_batch_size': 8,
            'train': {
                'remote': planted_url(Path(data)),
                'local': f'{tmp_path}/cache',
                'endpoint_url': f'http://{USER}@host/?sig={SIGNATURE}',
                'store_options': {'api_token': TOKEN},
            },
        }
    )
    model = Linear()
    trainer = Trainer(
        model=model,
        train_dataloader=spec,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration='4ba',
        callbacks=[StreamingPosition()],
        loggers=[FileLogger(filename=f'{tmp_path}/out/log.txt')],
        auto_log_hparams=True,
        device='cpu',
        progress_bar=False,
        save_folder=f'{tmp_path}/out',
    )
    trainer.fit()
    trainer.close()

    assert (tmp_path / 'out' / 'log.txt').exists()
    assert list((tmp_path / 'out').glob('*.pt'))
    assert not found_in_files(tmp_path / 'out')
    assert not found_in(''.join(capfd.readouterr()) + repr(spec) + str(trainer.state.state_dict()))
