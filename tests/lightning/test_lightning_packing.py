"""Packed text under Lightning: a run continues with the token after the last one, on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from headrace.errors import ConfigError
from headrace.lightning import LossSpikes, StreamingDataModule
from headrace.mixing import load_config
from tests.support import support_file
from tests.support.trainers.lightning_packing import Model, train
from tests.support.trainers.packed_text import BATCH, make_text, rows_of, sequences, written
from tests.support.trainers.ranks import run_ranks

pytestmark = [pytest.mark.lightning, pytest.mark.timeout(600)]
pytest.importorskip('tokenizers', reason='the tokenizer is one of tokenizers')


class Validated(Model):
    def validation_step(self, batch, batch_idx):
        pass


class Spiked(Model):
    """Its loss is 100 at the batches with one of these sequences, else 2."""

    def __init__(self, out: Path, name: str, bad: list[list[int]]) -> None:
        super().__init__(out, name)
        self.bad = bad

    def training_step(self, batch, batch_idx):
        loss = 100.0 if any(row in self.bad for row in rows_of(batch)) else 2.0
        return super().training_step(batch, batch_idx) * 0 + loss


@pytest.fixture(scope='module')
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_text(tmp_path_factory.mktemp('text'))


def test_a_run_continues_within_an_epoch_and_after_it(config, tmp_path):
    whole = sequences(config, 24)
    checkpoint = None
    for begin, end in (0, 4), (4, 10), (10, 13), (13, 24):
        train(str(tmp_path), f'leg{begin}', config, 1, end, checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == whole[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.ckpt')


def test_an_epoch_without_an_end(config, tmp_path):
    endless, checkpoint = str(Path(config).with_name('endless.yaml')), None
    whole = sequences(endless, 16)
    for begin, end in (0, 7), (7, 16):
        train(str(tmp_path), f'leg{begin}', endless, 1, end, checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == whole[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.ckpt')


def test_an_epoch_without_an_end_leaves_samples_out(config, tmp_path):
    whole = sequences(str(Path(config).with_name('endless.yaml')), 10 * BATCH)
    spiked, checkpoint = str(Path(config).with_name('spiked.yaml')), None
    kept = whole[:BATCH] + whole[3 * BATCH :]
    for begin, end in (0, 3), (3, 6):
        train(str(tmp_path), f'leg{begin}', spiked, 1, end, checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == kept[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.ckpt')


@pytest.mark.parametrize('name', ['endless', 'packed'])
def test_a_spike_names_the_batch_that_was_trained(config, tmp_path, name):
    """Without a length, Lightning has fetched the next batch by then."""
    path, checkpoint = str(Path(config).with_name(f'{name}.yaml')), None
    whole = sequences(path, 14)
    bad = {4: whole[4 * BATCH], 9: whole[9 * BATCH + 1], 12: whole[12 * BATCH]}  # an epoch of `packed` has 10 batches
    options = {'logger': False, 'enable_progress_bar': False, 'enable_model_summary': False}
    for begin, end in (0, 9), (9, 13):
        spikes = LossSpikes(warmup=3, folder=str(tmp_path))
        trainer = Trainer(accelerator='cpu', max_steps=end, callbacks=[spikes], enable_checkpointing=False, **options)
        trainer.fit(
            Spiked(tmp_path, f'leg{begin}', list(bad.values())), StreamingDataModule(path), ckpt_path=checkpoint
        )
        checkpoint = str(tmp_path / f'leg{begin}.ckpt')
        trainer.save_checkpoint(checkpoint)
    for step in bad:
        found = json.loads((tmp_path / f'loss-spike-batch{step}.json').read_text())
        assert found['skip'][-1] == [step * BATCH, (step + 1) * BATCH]
        assert [row['documents'] is None for row in found['batches'][0]['rows']] == [False] * BATCH
    assert len(list(tmp_path.glob('loss-spike*.json'))) == len(bad)


@pytest.mark.parametrize(
    ('steps', 'options'),
    [
        (9, {'limit_train_batches': 4}),
        (9, {'limit_train_batches': 1}),
        (9, {'limit_train_batches': 0.5}),
        (5, {'limit_train_batches': 8, 'accumulate_grad_batches': 2}),
        (-1, {'limit_train_batches': 4, 'max_epochs': 2}),
        (9, {'overfit_batches': 2}),
    ],
)
@pytest.mark.parametrize('name', ['endless', 'spiked'])
def test_what_ends_an_epoch_that_has_no_end_is_refused_before_the_first_step(config, tmp_path, name, steps, options):
    with pytest.raises(ConfigError, match=f'{next(iter(options))}=.* Set `sequences_per_epoch`'):
        train(str(tmp_path), 'leg', str(Path(config).with_name(f'{name}.yaml')), 1, steps, **options)
    assert not (tmp_path / 'leg.rank0').exists()


@pytest.mark.parametrize(
    ('steps', 'options', 'trained'),
    [
        (-1, {'fast_dev_run': 2}, 2),
        (3, {'limit_train_batches': 3}, 3),
        (4, {'limit_train_batches': 8, 'accumulate_grad_batches': 2}, 8),
        (-1, {'limit_train_batches': 3, 'max_epochs': 1}, 3),
        (2, {'limit_train_batches': 1.0}, 2),
    ],
)
def test_a_limit_that_no_second_pass_follows_is_none(config, tmp_path, steps, options, trained):
    endless = str(Path(config).with_name('endless.yaml'))
    train(str(tmp_path), 'leg', endless, 1, steps, **options)
    assert written(tmp_path, 'leg', 1) == sequences(endless, trained)


@pytest.mark.parametrize('mode', ['max_size_cycle', 'max_size', 'min_size'])
def test_an_epoch_without_an_end_among_several_is_refused(config, mode):
    endless = load_config(str(Path(config).with_name('endless.yaml'))).train
    data = StreamingDataModule(train={'text': endless, 'more': load_config(config).train}, train_mode=mode)
    trainer = Trainer(accelerator='cpu', max_steps=2, logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=f"train_mode '{mode}'.* train text does not end.* Set `sequences_per_epoch`"):
        trainer.fit(Model(Path(), 'none'), data)


def test_an_evaluation_without_an_end_is_refused_before_the_first_step(config, tmp_path):
    endless = load_config(str(Path(config).with_name('endless.yaml'))).train
    data = StreamingDataModule(train=load_config(config).train, val=endless)
    options = {'num_sanity_val_steps': 0, 'logger': False, 'enable_checkpointing': False}
    trainer = Trainer(accelerator='cpu', max_epochs=1, **options)
    with pytest.raises(ConfigError, match='A loader for evaluation .* does not end. Set `sequences_per_epoch`'):
        trainer.fit(Validated(tmp_path, 'leg'), data)
    assert not (tmp_path / 'leg.rank0').exists()


@pytest.mark.parametrize(('before', 'after'), [pytest.param(2, 1, marks=pytest.mark.slow), (1, 2)])
def test_a_run_continues_on_other_ranks(config, tmp_path, before, after):
    program = support_file('trainers/lightning_packing.py')
    whole = sequences(config, 12)
    run_ranks('lightning', before, program, tmp_path, 'first', config, before, 7, folder=tmp_path)
    assert written(tmp_path, 'first', before) == whole[: 7 * BATCH]
    arguments = [tmp_path, 'second', config, after, 12, tmp_path / 'first.ckpt']
    run_ranks('lightning', after, program, *arguments, folder=tmp_path)
    assert written(tmp_path, 'second', after) == whole[7 * BATCH :]
