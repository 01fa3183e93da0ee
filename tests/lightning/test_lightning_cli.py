"""LightningCLI: the data module's arguments on the command line, in the saved configuration, and at a resume."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch
from lightning.pytorch import LightningModule
from omegaconf import OmegaConf

import headrace.lightning
from headrace.lightning import StreamingDataModule

pytestmark = [pytest.mark.filterwarnings('ignore')]

TRAINER = [
    '--trainer.accelerator=cpu',
    '--trainer.devices=1',
    '--trainer.logger=false',
    '--trainer.enable_progress_bar=false',
    '--trainer.enable_model_summary=false',
]
BY_PATH = '--data=headrace.lightning.StreamingDataModule'


class Model(LightningModule):
    """Trains one weight, and keeps the ids that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.ids: list[list[int]] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.ids.append(batch['id'].tolist())
        return self.layer(batch['row']).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def config(mixes: dict[str, dict[str, str]], tmp_path: Path) -> Path:
    streams = {name: {'local': folder} for name, folder in mixes['even'].items()}
    path = tmp_path / 'mix.yaml'
    path.write_text(json.dumps({'global_batch_size': 8, 'train': {'shuffle': True, 'streams': streams}}))
    return path


def run(*arguments: str, folder: Path, by_path: bool = False) -> Any:
    pytest.importorskip('jsonargparse', reason='LightningCLI needs jsonargparse[signatures]')
    from lightning.pytorch.cli import LightningCLI

    datamodule = [] if by_path else [StreamingDataModule]
    root = f'--trainer.default_root_dir={folder}'
    # What stands later goes over what stands before, a file of arguments included.
    first = [argument for argument in arguments if argument.startswith('--config=')]
    rest = [argument for argument in arguments if argument not in first]
    return LightningCLI(Model, *datamodule, args=['fit', *first, *TRAINER, root, *rest])


def test_the_signature_is_one_that_a_command_line_can_give():
    hints = get_type_hints(StreamingDataModule.__init__)
    assert set(hints) == {*inspect.signature(StreamingDataModule).parameters, 'return'}
    for name in ('train', 'val', 'test', 'predict'):
        kinds = {get_origin(kind) or kind for kind in get_args(hints[name])}
        assert kinds == {Mapping, Callable, NoneType}, 'a class would be instantiated, and a dataset opened'
    assert set(get_args(hints['config'])) == {str, Mapping[str, Any], NoneType}


@pytest.mark.parametrize('by_path', [False, True], ids=['class', 'path'])
def test_it_runs_is_saved_and_resumed_exactly(config, tmp_path, by_path):
    data = [*([BY_PATH] if by_path else []), f'--data.config={config}']
    whole = run(*data, '--trainer.max_epochs=2', folder=tmp_path / 'whole', by_path=by_path)
    first = run(*data, '--trainer.max_steps=15', folder=tmp_path / 'first', by_path=by_path)
    saved = OmegaConf.to_container(OmegaConf.load(tmp_path / 'first' / 'config.yaml'))['data']
    assert (saved['init_args'] if by_path else saved)['config'] == str(config)
    (checkpoint,) = (tmp_path / 'first').rglob('*.ckpt')
    rest = run(
        f'--config={tmp_path / "first" / "config.yaml"}',
        '--trainer.max_steps=-1',
        '--trainer.max_epochs=2',
        f'--ckpt_path={checkpoint}',
        folder=tmp_path / 'rest',
        by_path=by_path,
    )
    assert len(whole.model.ids) == 24
    assert first.model.ids + rest.model.ids == whole.model.ids


def test_overrides_and_arguments_are_given_on_the_command_line(config, mixes, tmp_path):
    once = '--trainer.max_steps=1'
    changed = run(
        f'--data.config={config}', '--data.overrides=[global_batch_size=12]', once, folder=tmp_path / 'overrides'
    )
    assert len(changed.model.ids[0]) == 12
    by_hand = run(
        f'--data.train.local={mixes["even"]["a"]}',
        '--data.train.shuffle=true',
        '--data.batch_size=6',
        once,
        folder=tmp_path / 'by_hand',
    )
    assert len(by_hand.model.ids[0]) == 6


def test_help_shows_the_arguments(capsys, tmp_path):
    with pytest.raises(SystemExit) as done:
        run('--help', folder=tmp_path)
    assert done.value.code == 0
    shown = capsys.readouterr().out
    for name in inspect.signature(headrace.lightning.StreamingDataModule).parameters:
        assert f'--data.{name}' in shown
