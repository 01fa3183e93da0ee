"""A data module in a second `fit`: what it does not train is said, and only that."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from headrace import MDSWriter, StreamingDataLoader
from headrace.errors import ConfigError
from headrace.lightning import StreamingDataModule
from headrace.packing import PackedDataset, Packing
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import Crash, Model, Run, UnsizedDataModule, dataset, train

LEFT = 'ended in the middle of an epoch'
OTHER = 'has trained under another Trainer'


@pytest.fixture
def run(mixes: dict[str, dict[str, str]], tmp_path: Path) -> Run:
    return Run(name='run', out=str(tmp_path), streams=mixes['even'])


def trainer_of(run: Run, **options: object) -> Trainer:
    quiet = {'logger': False, 'enable_checkpointing': False, 'enable_progress_bar': False}
    return Trainer(accelerator='cpu', devices=1, enable_model_summary=False, **{**quiet, 'max_epochs': 3, **options})


def module_of(run: Run, kind: type[StreamingDataModule] = StreamingDataModule) -> StreamingDataModule:
    return kind(train=dataset(run), batch_size=8)


def warnings_of(trainer: Trainer, run: Run, data: StreamingDataModule, checkpoint: Path | None = None) -> list[str]:
    """The warnings of a fit about data that it does not train."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        trainer.fit(Model(run), data, ckpt_path=checkpoint)
    return [text for text in (str(one.message) for one in caught) if LEFT in text or OTHER in text]


@pytest.mark.parametrize('kind', [StreamingDataModule, UnsizedDataModule])
@pytest.mark.parametrize(
    ('steps', 'left'), [(5, 'train at sample 40 of epoch 0'), (17, 'train at sample 40 of epoch 1')]
)
def test_the_rest_of_an_epoch_that_a_second_fit_drops_is_said(run: Run, kind, steps: int, left: str) -> None:
    data, trainer = module_of(run, kind), trainer_of(run, max_steps=steps)
    assert warnings_of(trainer, run, data) == []
    trainer.fit_loop.epoch_loop.max_steps = steps + 3
    (warning,) = warnings_of(trainer, run, data)
    assert left in warning
    assert 'ckpt_path' in warning
    found = records(run)[0]
    begun = dataset(run, batch_size=8).plan(epoch=steps // 12 + 1).ids(0).tolist()
    assert found[steps]['ids'] == begun


def test_nothing_is_said_of_a_fit_that_drops_nothing(run: Run, tmp_path: Path) -> None:
    data, trainer = module_of(run), trainer_of(run, max_epochs=1)
    assert warnings_of(trainer, run, data) == []
    trainer.fit_loop.max_epochs = 2
    assert warnings_of(trainer, run, data) == []  # after a whole epoch
    limited, data = trainer_of(run, max_epochs=1, limit_train_batches=5), module_of(run)
    assert warnings_of(limited, run, data) == []
    limited.fit_loop.max_epochs = 2
    assert warnings_of(limited, run, data) == []  # after as much of one as was asked for


def test_nothing_is_said_where_a_checkpoint_continues(run: Run, tmp_path: Path) -> None:
    data, trainer = module_of(run), trainer_of(run, max_steps=5)
    trainer.fit(Model(run), data)
    trainer.save_checkpoint(tmp_path / 'end.ckpt')
    trainer.fit_loop.epoch_loop.max_steps = 8
    assert warnings_of(trainer, run, data, tmp_path / 'end.ckpt') == []
    other = trainer_of(run, max_steps=10)
    assert warnings_of(other, run, data, tmp_path / 'end.ckpt') == []
    every = [batch['ids'] for batch in records(run)[0]]
    plan = dataset(run, batch_size=8).plan()
    assert every == [plan.ids(k).tolist() for k in [*range(8), *range(5, 10)]]


def test_trainers_that_share_a_module_in_turn_are_told(run: Run) -> None:
    data = module_of(run)
    first, second = trainer_of(run, max_epochs=1), trainer_of(run, max_epochs=1)
    assert warnings_of(first, run, data) == []
    assert len(warnings_of(second, run, data)) == 1
    first.fit_loop.max_epochs = 2
    (warning,) = warnings_of(first, run, data)
    assert OTHER in warning
    assert 'epoch 0' in warning
    # The warning is true: epoch 0 comes a third time.
    batches = [batch['ids'] for batch in records(run)[0]]
    assert batches[:12] == batches[12:24] == batches[24:]


def test_a_module_that_was_only_looked_at_by_another_trainer_says_nothing(run: Run) -> None:
    data = module_of(run)
    data.trainer = trainer_of(run)
    data.setup('fit')
    assert warnings_of(trainer_of(run, max_steps=2), run, data) == []


@pytest.mark.parametrize('skip', [(), [[0, 40]]])
def test_what_leaves_nothing_to_train_is_refused(run: Run, skip: list[list[int]]) -> None:
    run.dataset = {'skip': skip}
    data = StreamingDataModule(train=dataset(run), batch_size=128, drop_last=True)
    with pytest.raises(ConfigError, match='train has no batch in an epoch: its 96 samples .* 128.*`drop_last`'):
        trainer_of(run).fit(Model(run), data)


def test_what_leaves_a_batch_is_trained(run: Run) -> None:
    data = StreamingDataModule(train=dataset(run), batch_size=96, drop_last=True)
    trainer_of(run, max_epochs=1).fit(Model(run), data)
    assert [len(batch['ids']) for batch in records(run)[0]] == [96]


@pytest.mark.parametrize('streams', ['even', 'uneven'])
def test_a_second_fit_of_a_loader_without_length_continues_with_the_next_epoch(run: Run, mixes, streams: str) -> None:
    """Lightning begins the first epoch of a later fit twice, and reads a batch each time."""
    run.streams, run.unsized, run.fits = mixes[streams], True, [1, 3]
    train(run)
    verdict = judge([(run, None)])
    assert verdict.is_exact
    assert verdict.epochs == 3


def test_an_epoch_of_which_nothing_was_trained_comes_again(run: Run) -> None:
    run.crash_at = 12
    data, trainer = module_of(run), trainer_of(run)
    with pytest.raises(Crash):
        trainer.fit(Model(run), data)
    run.crash_at = None
    assert warnings_of(trainer, run, data) == []
    plans = [dataset(run, batch_size=8).plan(epoch=epoch) for epoch in range(3)]
    assert [batch['ids'] for batch in records(run)[0]] == [plan.ids(k).tolist() for plan in plans for k in range(12)]


class Recorder(LightningModule):
    """Remembers each batch as a text, and what a checkpoint has of loaders and callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(f'{batch_idx}: {batch}')
        return self.layer(torch.ones(1)).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing to measure."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            path = Path(self.trainer.default_root_dir, 'last.ckpt')
            self.trainer.save_checkpoint(path)
            saved = torch.load(path)
            loaders = saved['loops']['fit_loop']['state_dict'].get('combined_loader')
            self.seen.append(f'{loaders}, {[*saved["callbacks"]]}')

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Outer(LightningDataModule):
    """A user's, around a StreamingDataModule."""

    def __init__(self, inner: StreamingDataModule) -> None:
        super().__init__()
        self.inner = inner

    def setup(self, stage: str) -> None:
        self.inner.trainer = self.trainer
        self.inner.setup(stage)

    def train_dataloader(self) -> Any:
        return self.inner.train_dataloader()


def plain(rows: int = 60) -> DataLoader[Any]:
    return DataLoader([{'other': row} for row in range(rows)], batch_size=4)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope='module')
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp('tokens'))
    with MDSWriter(out=folder, columns={'tokens': 'ndarray:int32'}) as writer:
        for number in range(40):
            writer.write({'tokens': np.arange(number, number + 12, dtype=np.int32)})
    return folder


def kinds_of_data(run: Run, tokens: str) -> dict[str, Callable[[Trainer], Any]]:
    """Training data for a trainer, made anew by each call."""

    def by_hand(trainer: Trainer) -> Any:
        data = module_of(run)
        data.trainer = trainer
        return data.train_dataloader()

    def bare() -> StreamingDataLoader:
        return StreamingDataLoader(dataset(run, skip=[[40, 60]]), batch_size=8)

    packing = Packing(sequence_length=32, sequences_per_epoch=12, column='tokens')
    return {
        'skipped': lambda _: StreamingDataModule(train=dataset(run, skip=[[30, 60], [100, 150]]), batch_size=8),
        'whole': lambda _: module_of(run),
        'several': lambda _: StreamingDataModule(
            train=[dataset(run, skip=[[0, 20]]), dataset(run)], batch_size=8, train_mode='min_size'
        ),
        'packed': lambda _: StreamingDataModule(train=PackedDataset(local=tokens, packing=packing), batch_size=4),
        'hidden': lambda _: UnsizedDataModule(train=dataset(run), batch_size=8),
        'inside': lambda _: Outer(module_of(run)),
        'by hand': by_hand,
        'bare': lambda _: bare(),
        'plain': lambda _: plain(),
        'combined': lambda _: CombinedLoader({'a': bare(), 'b': plain(30)}, 'min_size'),
    }


KINDS = ('skipped', 'whole', 'several', 'packed', 'hidden', 'inside', 'by hand', 'bare', 'plain', 'combined')


def fit_more(trainer: Trainer, data: Any, epochs: int = 2) -> list[str]:
    model, loop = Recorder(), trainer.fit_loop
    loop.max_epochs = loop.epoch_progress.current.processed + epochs
    trainer.fit(model, data)
    return model.seen


@pytest.fixture(scope='module')
def alone() -> dict[str, list[str]]:
    """What a trainer does with each kind of data that never saw headrace's before."""
    return {}


@pytest.mark.parametrize(
    'first',
    [
        'skipped',
        'packed',
        'bare',
        *(pytest.param(name, marks=pytest.mark.slow) for name in ('several', 'hidden', 'inside', 'by hand')),
    ],
)
def test_a_trainer_that_goes_on_with_other_data_trains_it_as_a_new_one(run, tokens, alone, first: str) -> None:
    make = kinds_of_data(run, tokens)
    for second in KINDS:
        if second not in alone:
            trainer = trainer_of(run, default_root_dir=run.out)
            fit_more(trainer, plain(), epochs=1)
            alone[second] = fit_more(trainer, make[second](trainer))
        trainer = trainer_of(run, default_root_dir=run.out)
        fit_more(trainer, make[first](trainer), epochs=1)
        trainer.validate(Recorder(), StreamingDataModule(val=dataset(run), batch_size=8), verbose=False)
        assert fit_more(trainer, make[second](trainer)) == alone[second], f'{first}, then {second}'
