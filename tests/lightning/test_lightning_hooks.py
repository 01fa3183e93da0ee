"""What a subclass does to samples, what is prepared before, what loggers are told; loaders passed by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from headrace import PADDING, MDSWriter, StreamingDataset, sample_rng
from headrace.errors import ConfigError
from headrace.lightning import StreamingDataModule
from headrace.mixing import load_config
from tests.support.programs.processes import run_well
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import EPOCHS, Crash, Model, Run, callbacks, dataset
from tests.support.trainers.ranks import run_ranks

pytestmark = [pytest.mark.filterwarnings('ignore')]


@pytest.fixture
def run(mixes, tmp_path) -> Run:
    return Run(name='run', out=str(tmp_path), streams=mixes['even'])


def trainer_of(run: Run, **options: Any) -> Trainer:
    quiet = {'logger': False, 'enable_progress_bar': False, 'enable_model_summary': False, 'num_sanity_val_steps': 0}
    found = callbacks(run)
    common = {'max_epochs': EPOCHS, 'enable_checkpointing': bool(found), 'default_root_dir': run.out}
    return Trainer(accelerator='cpu', callbacks=found, **{**quiet, **common, **options})


# -- samples ----------------------------------------------------------------------------------------------------------


class Tokenised(StreamingDataModule):
    """As a user's would be: a vocabulary of its own, samples of unequal lengths, padded."""

    def __init__(self, *args: Any, vocabulary: dict[str, int], **options: Any) -> None:
        super().__init__(*args, **options)
        self.vocabulary = vocabulary

    def transform(self, sample: dict[str, Any], section: str) -> dict[str, Any]:
        tokens = [self.vocabulary[digit] for digit in str(sample['id'])]
        return {'id': sample['id'], 'tokens': torch.tensor(tokens), 'section': section}

    def collate(self, samples: list[dict[str, Any]], section: str) -> dict[str, Any]:
        assert {sample['section'] for sample in samples} == {section}
        tokens = torch.nn.utils.rnn.pad_sequence([sample['tokens'] for sample in samples], batch_first=True)
        return {'id': torch.tensor([sample['id'] for sample in samples]), 'tokens': tokens, 'section': section}


@pytest.mark.parametrize(
    ('workers', 'method'),
    [(0, None), (2, 'fork'), *(pytest.param(1, method, marks=pytest.mark.slow) for method in ('spawn', 'forkserver'))],
)
def test_a_subclass_makes_the_batches(run, workers, method):
    vocabulary = {digit: int(digit) + 1 for digit in '0123456789'}
    data = Tokenised(
        train=dataset(run),
        val=dataset(run),
        batch_size=8,
        num_workers=workers,
        multiprocessing_context=method,
        vocabulary=vocabulary,
        prepare=lambda: None,  # which no worker needs, and which cannot be sent to one
        topology=lambda trainer: {},
    )
    data.trainer = trainer_of(run)
    plan = dataset(run).plan(epoch=0, global_batch_size=8)
    for number, batch in enumerate(data.train_dataloader()):
        ids = plan.ids(number).tolist()
        assert batch['id'].tolist() == ids
        assert batch['section'] == 'train'
        text = [''.join(str(int(token) - 1) for token in row if token) for row in batch['tokens']]
        assert text == [str(sample_id) for sample_id in ids]
    assert {batch['section'] for batch in data.val_dataloader()} == {'val'}


def test_a_transform_draws_the_same_numbers_with_any_workers(run):
    class Noisy(StreamingDataModule):
        def transform(self, sample, section):
            return {'id': sample['id'], 'noise': sample_rng().random()}

    found = []
    for workers, size in ((0, 8), (2, 8), (1, 6)):
        data = Noisy(train=dataset(run), batch_size=size, num_workers=workers)
        data.trainer = trainer_of(run)
        rows = [zip(batch['id'].tolist(), batch['noise'].tolist(), strict=True) for batch in data.train_dataloader()]
        found.append(sorted(row for batch in rows for row in batch))
    assert found[0] == found[1] == found[2]
    assert len({noise for _, noise in found[0]}) == 96


def test_a_transform_alone_is_collated_as_ever(run):
    class Doubled(StreamingDataModule):
        def transform(self, sample, section):
            return {'twice': 2 * sample['id'], 'row': sample['row']}

    def first_column(samples):
        return torch.tensor([sample['twice'] for sample in samples])

    ids = dataset(run).plan(epoch=0, global_batch_size=8).ids(0)
    for collate, read in ((None, lambda batch: batch['twice']), (first_column, lambda batch: batch)):
        data = Doubled(train=dataset(run), batch_size=8, collate_fn=collate)
        data.trainer = trainer_of(run)
        assert read(next(iter(data.train_dataloader()))).tolist() == (2 * ids).tolist()


def test_a_subclass_is_resumed_exactly(run):
    class Shifted(StreamingDataModule):
        def transform(self, sample, section):
            return {'id': sample['id'], 'row': sample['row'] + 1}

    def fit(leg: Run, crash_at: int | None, checkpoint: str | None) -> None:
        leg.crash_at = crash_at
        trainer_of(leg).fit(Model(leg), Shifted(train=dataset(leg), batch_size=8, num_workers=1), ckpt_path=checkpoint)

    run.every_steps = 5
    with pytest.raises(Crash):
        fit(run, 17, None)
    second = Run(name='second', out=run.out, streams=run.streams)
    fit(second, None, str(run.checkpoints / 'step15.ckpt'))
    verdict = judge([(run, run.checkpoints / 'step15.ckpt'), (second, None)])
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS


# -- before -----------------------------------------------------------------------------------------------------------

PREPARES = """
import json, os, sys
import torch
from pathlib import Path
from tests.support.programs.processes import end_rank
from lightning.pytorch import LightningModule, Trainer
from headrace import MDSWriter
from headrace.lightning import StreamingDataModule

out = Path(sys.argv[1])

def convert():
    with open(out / 'prepared', 'a') as file:
        file.write(os.environ['RANK'] + '\\n')
    if not (out / 'remote' / 'index.json').exists():
        places = str(out / 'written'), str(out / 'remote')
        with MDSWriter(out=places, columns={'id': 'int'}, size_limit=300) as writer:
            for number in range(64):
                writer.write({'id': number})

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        with open(out / f'rank{self.global_rank}', 'a') as file:
            file.write(''.join(f'{i}\\n' for i in batch['id'].tolist()))
        return self.layer(torch.ones(1))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = StreamingDataModule(
    train={'remote': str(out / 'remote'), 'local': str(out / 'cache')}, batch_size=8, prepare=convert
)
options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=1)
trainer = Trainer(accelerator='cpu', devices=2, strategy='ddp', **options)
trainer.fit(Model(), data)
end_rank()
"""


def test_data_are_converted_and_uploaded_once_before_they_are_read(tmp_path):
    program = tmp_path / 'program.py'
    program.write_text(PREPARES)
    for starts in (1, 2):
        run_ranks('lightning', 2, program, tmp_path, folder=tmp_path)
        assert (tmp_path / 'prepared').read_text() == '0\n' * starts
        seen = [int(line) for rank in range(2) for line in (tmp_path / f'rank{rank}').read_text().splitlines()]
        assert sorted(seen) == sorted([*range(64)] * starts)


def test_a_subclass_may_prepare_as_lightning_has_it(run):
    class Prepared(StreamingDataModule):
        prepared = 0

        def prepare_data(self):
            self.prepared += 1

    data = Prepared(train=dataset(run), batch_size=8)
    assert data.prepare_data_per_node
    trainer_of(run, max_steps=1).fit(Model(run), data)
    assert data.prepared == 1


# -- what is told -----------------------------------------------------------------------------------------------------


def test_loggers_and_checkpoints_are_told_what_was_given(run, tmp_path):
    config = {
        'global_batch_size': 8,
        'train': {'shuffle': True, 'streams': {name: {'local': folder} for name, folder in run.streams.items()}},
    }
    made = StreamingDataset(local=run.streams['a'])
    keywords = {'local': run.streams['a'], 'shuffle': True}
    modules = {
        'config': StreamingDataModule(config),
        'keywords': StreamingDataModule(train=keywords, val={'one': made, 'two': lambda: made}, batch_size=8),
    }
    told = {}
    for name, data in modules.items():
        logger = CSVLogger(tmp_path / name)
        saver = ModelCheckpoint(dirpath=tmp_path / name, filename='it', every_n_train_steps=1)
        options = {'logger': logger, 'limit_val_batches': 0, 'log_every_n_steps': 1}
        trainer = Trainer(accelerator='cpu', max_steps=1, callbacks=[saver], enable_progress_bar=False, **options)
        trainer.fit(Model(run), data)
        told[name] = torch.load(tmp_path / name / 'it.ckpt', weights_only=True)['datamodule_hyper_parameters']
        assert 'headrace' in Path(logger.log_dir, 'hparams.yaml').read_text()
    given = told['config']['headrace']
    assert load_config({'global_batch_size': 8, 'train': given['train']}) == load_config(config)
    assert told['keywords']['headrace']['train'] == keywords
    assert told['keywords']['headrace']['batch_size'] == 8
    assert told['keywords']['headrace']['val']['one']['streams'][0]['local'] == run.streams['a']
    assert json.dumps(told)


class OnPadded(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        own = torch.arange(batch['tokens'].shape[1]) < batch['tokens_length'][:, None]
        assert torch.equal(batch['tokens'], torch.where(own, batch['id'][:, None], -1))
        self.seen += batch['id'].tolist()
        return self.layer(batch['tokens_length'].float()[:, None]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_data_module_pads_columns(run, tmp_path):
    with MDSWriter(out=str(tmp_path / 'ragged'), columns={'id': 'int', 'tokens': 'ndarray:int64'}) as writer:
        for number in range(32):
            writer.write({'id': number, 'tokens': np.full(1 + number % 5, number)})
    options = {'batch_size': 8, 'pad': {'tokens': -1}}
    for trained in ({'max_epochs': 1}, {'max_epochs': 2, 'overfit_batches': 4}):
        model = OnPadded()
        module = StreamingDataModule(train={'local': str(tmp_path / 'ragged')}, num_workers=1, **options)
        trainer_of(run, **trained).fit(model, datamodule=module)
        assert sorted(model.seen) == sorted([*range(32)] * trained['max_epochs'])
    tokenised = Tokenised(train={'local': str(tmp_path / 'ragged')}, vocabulary={}, **options)
    with pytest.raises(ConfigError, match='`transform` or `collate` of a data module, makes them here'):
        trainer_of(run).fit(OnPadded(), datamodule=tokenised)


def test_batches_are_not_copied_to_another_device_than_the_trainers(run):
    module = StreamingDataModule(train={'local': run.streams['a']}, batch_size=8, device='cuda')
    with pytest.raises(ConfigError, match="`device` is 'cuda', but the trainer puts batches on 'cpu'"):
        trainer_of(run).fit(OnPadded(), datamodule=module)


def test_a_subclass_may_take_arrays(run):
    class Weighted(StreamingDataModule):
        def __init__(self, weights, **options):
            super().__init__(**options)

    assert 'headrace' in Weighted(np.ones(3), train=dataset(run), batch_size=8).hparams


def test_a_models_own_batch_size_may_differ(run):
    class Sized(Model):
        def __init__(self, run, batch_size):
            super().__init__(run)
            self.save_hyperparameters('batch_size')

    logger = CSVLogger(run.out)
    trainer = trainer_of(run, max_steps=1, logger=logger)
    trainer.fit(Sized(run, batch_size=16), StreamingDataModule(train=dataset(run), batch_size=8))


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('crash_at', [5, 12, 17])
def test_a_modules_loaders_may_be_passed_by_hand(run, crash_at):
    def fit(leg: Run, checkpoint: Path | None) -> None:
        trainer = trainer_of(leg)
        data = StreamingDataModule(train=dataset(leg), val=dataset(leg, shuffle_seed=1), batch_size=leg.batch_size)
        data.trainer = trainer
        trainer.fit(Model(leg), data.train_dataloader(), data.val_dataloader(), ckpt_path=checkpoint)

    run.on_exception, run.crash_at = True, crash_at
    with pytest.raises(Crash):
        fit(run, None)
    checkpoint = run.checkpoints / 'exception.ckpt'
    second = Run(name='second', out=run.out, streams=run.streams, batch_size=6)
    fit(second, checkpoint)
    verdict = judge([(run, checkpoint), (second, None)])
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS


def test_a_run_with_the_module_resumes_with_loaders_by_hand(run):
    run.on_exception, run.crash_at = True, 17
    with pytest.raises(Crash):
        trainer_of(run).fit(Model(run), StreamingDataModule(train=dataset(run), batch_size=8))
    checkpoint = run.checkpoints / 'exception.ckpt'
    second = Run(name='second', out=run.out, streams=run.streams, batch_size=8)
    data = StreamingDataModule(train=dataset(second), batch_size=8)
    data.trainer = trainer = trainer_of(second)
    trainer.fit(Model(second), data.train_dataloader(), ckpt_path=checkpoint)
    assert judge([(run, checkpoint), (second, None)]).is_exact


def test_loaders_that_lightning_makes_anew_are_the_same(run):
    class Keys(Model):
        def predict_step(self, batch):
            return sorted(batch)

    data = StreamingDataModule(train=dataset(run), predict=dataset(run), batch_size=40)
    data.trainer = trainer = trainer_of(run)
    assert trainer.predict(Keys(run), data.predict_dataloader()) == [sorted({'id', PADDING, 'row'})] * 3

    data = StreamingDataModule(train=dataset(run), batch_size=8)
    data.trainer = trainer = trainer_of(run, overfit_batches=2, max_epochs=2)
    trainer.fit(Model(run), data.train_dataloader())
    batches = [record['ids'] for record in records(run)[0]]
    assert len(batches) == 4
    assert batches[:2] == batches[2:]


BY_HAND = """
import atexit, sys
import torch
from tests.support.programs.processes import end_rank
from lightning.pytorch import LightningModule, Trainer
from headrace.lightning import StreamingDataModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        with open(f'rank{self.global_rank}', 'a') as file:
            file.write(''.join(f'{i}\\n' for i in batch['id'].tolist()))
        return self.layer(torch.ones(1))
    def on_fit_end(self):
        atexit.register(end_rank)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == '__main__':
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=1)
    trainer = Trainer(accelerator='cpu', devices=2, strategy='ddp_spawn', **options)
    data = StreamingDataModule(train={'local': sys.argv[1]}, batch_size=8)
    data.trainer = trainer
    trainer.fit(Model(), data.train_dataloader())
"""


@pytest.mark.slow
def test_loaders_by_hand_know_the_ranks_that_are_spawned_later(run, tmp_path):
    program = tmp_path / 'program.py'
    program.write_text(BY_HAND)
    run_well([sys.executable, str(program), run.streams['a']], cwd=tmp_path)
    ranks = [[int(line) for line in (tmp_path / f'rank{rank}').read_text().splitlines()] for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == [*range(60)]


def test_a_module_without_a_trainer_says_what_is_missing(run):
    class Plain(LightningModule):
        def training_step(self, batch, batch_idx): ...
        def configure_optimizers(self): ...

    from headrace.errors import ConfigError

    data = StreamingDataModule(train=dataset(run), batch_size=8)
    with pytest.raises(ConfigError, match='set its `trainer`'):
        trainer_of(run).fit(Plain(), data.train_dataloader())
