"""Data modules of small data, and what their training reads."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from tests.support.trainers.lightning_oracle import records
from tests.support.trainers.lightning_run import Run


def quiet(run: Run, **options: Any) -> Trainer:
    return Trainer(
        **{
            'accelerator': 'cpu',
            'devices': 1,
            'logger': False,
            'enable_checkpointing': False,
            'enable_progress_bar': False,
            'enable_model_summary': False,
            'default_root_dir': run.out,
            'num_sanity_val_steps': 0,
            'max_epochs': 1,
            **options,
        }
    )


def ids(run: Run, key: str = 'batch') -> list[list[int]]:
    return [record['ids'] for record in records(run, key)[0]]
