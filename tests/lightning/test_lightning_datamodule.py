"""The data module: what it takes, what it refuses before the first step, and what its loaders give."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import logging
import pickle
import re
import typing
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.tuner import Tuner

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, TopologyError
from headrace.lightning import DataStatistics, PositionCallback, StreamingDataModule
from headrace.mixing import WorkerConfig
from tests.support.trainers.data_modules import ids, quiet
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import Crash, Model, Run, callbacks, dataset, train

logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)


pytestmark = [pytest.mark.filterwarnings('ignore')]


WITH_A_FILE = ('config', 'overrides', 'prepare', 'collate_fn', 'worker_init_fn', 'dataset_class', 'topology')
WITH_A_FILE += ('save_rng', 'position_files')


def test_every_argument_that_a_file_leaves_without_effect_is_refused_whatever_its_value(yaml: str) -> None:
    for name, parameter in inspect.signature(StreamingDataModule).parameters.items():
        if name == 'config':
            continue
        arguments = {name: parameter.default}
        if name in WITH_A_FILE:
            assert StreamingDataModule(yaml, **arguments)
        else:
            with pytest.raises(ConfigError, match=f'these arguments are given too: {name}'):
                StreamingDataModule(yaml, **arguments)


def test_the_options_of_a_loader_are_those_of_a_configuration() -> None:
    parameters = inspect.signature(StreamingDataModule).parameters
    lines = (StreamingDataModule.__doc__ or '').splitlines()
    for option in dataclasses.fields(WorkerConfig):
        assert parameters[option.name].default == option.default, option.name
        assert [line for line in lines if line.startswith(f'    {option.name}: ')], option.name
    assert [line for line in lines if line.strip() == 'Args:'] == ['Args:']


def test_constructing_touches_neither_data_nor_processes(yaml):
    before = torch.distributed.is_initialized()
    module = StreamingDataModule(train={'remote': 's3://no-such-bucket/data', 'local': '/nonexistent'}, batch_size=8)
    assert torch.distributed.is_initialized() == before
    assert not torch.cuda.is_initialized()
    assert pickle.loads(pickle.dumps(module)).batch_size == 8


def test_annotations_resolve_for_a_command_line():
    hints = typing.get_type_hints(StreamingDataModule.__init__)
    assert hints['batch_size'] == int | None
    assert hints['num_workers'] is int


def test_only_loaders_that_were_given_are_defined(run):
    class Tested(Model):
        def test_step(self, batch, batch_idx): ...

    module = StreamingDataModule(train=dataset(run), batch_size=8)
    with pytest.raises(TypeError, match='test_dataloader'):
        quiet(run).test(Tested(run), module)


class Collating(StreamingDataModule):
    def collate(self, samples, section):
        return samples


def refusals(run: Run, yaml: str) -> dict[str, tuple[Any, str]]:
    return {
        'nothing': (lambda: StreamingDataModule(), 'needs data'),
        'a loader': (
            lambda: StreamingDataModule(train=StreamingDataLoader(dataset(run), batch_size=8)),
            'A source must',
        ),
        'none for training': (lambda: StreamingDataModule(train=[]), 'names no dataset'),
        'one dataset twice': (
            lambda: StreamingDataModule(train=[data := dataset(run), data]),
            'train 0 and train 1 are',
        ),
        'one dataset for training and evaluation': (
            lambda: StreamingDataModule(train={'a': dataset(run), 'b': (data := dataset(run))}, val=[data]),
            'train b and val 0 are the same',
        ),
        'one dataset for training and prediction': (
            lambda: StreamingDataModule(train=(data := dataset(run)), predict=data),
            'train and predict are the same',
        ),
        'a mode that is none': (
            lambda: StreamingDataModule(train=dataset(run), train_mode='sequential'),
            'one of max_size_cycle, max_size, min_size',
        ),
        'two ways to collate': (lambda: Collating(train=dataset(run), collate_fn=list), 'overrides `collate`'),
        'workers twice': (lambda: StreamingDataModule(yaml, num_workers=2), 'num_workers'),
        'data twice': (lambda: StreamingDataModule(yaml, train=dataset(run)), 'train'),
        'a class for nothing': (
            lambda: StreamingDataModule(train=dataset(run), dataset_class=StreamingDataset),
            '`dataset_class` makes',
        ),
        'overrides of nothing': (lambda: StreamingDataModule(train=dataset(run), overrides=['a=1']), 'overrides'),
        'no samples': (lambda: StreamingDataModule(train=dataset(run), batch_size=0), 'at least 1'),
        'a wrong file': (lambda: StreamingDataModule({'train': {'local': '/a', 'suffle': True}}), 'shuffle'),
    }


@pytest.mark.parametrize(
    'name',
    [
        'nothing',
        'a loader',
        'none for training',
        'one dataset twice',
        'one dataset for training and evaluation',
        'one dataset for training and prediction',
        'a mode that is none',
        'two ways to collate',
        'workers twice',
        'data twice',
        'a class for nothing',
        'overrides of nothing',
        'no samples',
        'a wrong file',
    ],
)
def test_contradictions_are_refused_when_it_is_made(name, run, yaml):
    make, message = refusals(run, yaml)[name]
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize('other', ['train', 'val'])
def test_a_function_that_gives_one_dataset_twice_is_refused_before_the_first_step(run: Run, other: str) -> None:
    data = dataset(run)
    sources = {'train': [lambda: data] * 2} if other == 'train' else {'train': lambda: data, 'val': lambda: data}
    with pytest.raises(ConfigError, match='the same StreamingDataset'):
        quiet(run).fit(Model(run), StreamingDataModule(batch_size=8, **sources))
    assert not Path(run.out, 'run.rank0.jsonl').exists()


def test_evaluation_loaders_may_share_a_dataset(run: Run) -> None:
    data = dataset(run)
    module = StreamingDataModule(val=data, test=data, batch_size=8)
    module.trainer = quiet(run)
    validation, test = module.val_dataloader(), module.test_dataloader()
    passes = [[batch['id'].tolist() for batch in loader] for loader in (validation, test, validation)]
    assert passes[0] == passes[1] == passes[2]
    assert len(passes[0]) == 12


@pytest.mark.parametrize(
    ('own', 'given', 'message'), [(4, 8, 'twice with different values'), (None, None, 'No batch size is known')]
)
def test_batch_sizes_are_checked_before_the_first_step(own, given, message, run):
    module = StreamingDataModule(train=dataset(run, batch_size=own), batch_size=given)
    with pytest.raises(ConfigError, match=message):
        quiet(run).fit(Model(run), module)


def test_batch_size_may_contradict_no_yaml(run, yaml):
    with pytest.raises(ConfigError, match='16 per device to StreamingDataModule, and 8'):
        quiet(run).fit(Model(run), StreamingDataModule(yaml, batch_size=16))
    quiet(run).fit(Model(run), StreamingDataModule(yaml, batch_size=8))


def ranks_of(*, world_size: int, rank: int = 0, replicas: int | None = None, replica: int | None = None) -> Any:
    """The topology that a data module reads from a trainer with several ranks."""
    replicas = replicas or world_size
    sampler = {'num_replicas': replicas, 'rank': rank * replicas // world_size if replica is None else replica}
    return SimpleNamespace(
        world_size=world_size,
        global_rank=rank,
        strategy=SimpleNamespace(checkpoint_io=None, num_nodes=1, distributed_sampler_kwargs=sampler),
        callbacks=[],
        datamodule=None,
    )


def test_ranks_that_do_not_divide_the_global_batch_are_refused(yaml):
    module = StreamingDataModule(yaml)
    module.trainer = ranks_of(world_size=3)
    with pytest.raises(TopologyError, match='3 ranks must divide the global batch size'):
        module.setup('fit')


def test_topology_comes_from_the_trainer(run, monkeypatch):
    monkeypatch.setenv('RANK', '5')
    monkeypatch.setenv('WORLD_SIZE', '64')
    data = dataset(run)
    module = StreamingDataModule(train=data, batch_size=8)
    module.trainer = ranks_of(world_size=4, rank=3, replicas=2)
    module.setup('fit')
    topology = data.topology
    assert (topology.rank, topology.world_size, topology.replication, topology.replica) == (3, 4, 2, 1)
    assert module.position.loaders[0].global_batch_size == 16


def test_replication_of_the_dataset_holds_where_the_trainer_has_none(run):
    data = dataset(run, replication=2, topology=Topology(world_size=2, replication=2))
    module = StreamingDataModule(train=data, batch_size=8)
    module.trainer = ranks_of(world_size=4, rank=3)
    module.setup('fit')
    assert (data.topology.replicas, data.topology.replica) == (2, 1)


def test_the_strategy_says_which_replica_a_rank_is(run):
    data = dataset(run)
    module = StreamingDataModule(train=data, batch_size=8)
    module.trainer = ranks_of(world_size=4, rank=1, replicas=2, replica=1)
    module.setup('fit')
    assert (data.topology.replicas, data.topology.replica) == (2, 1)


def test_a_trainer_of_pytorch_lightning_is_refused(run):
    class Other:
        __module__ = 'pytorch_lightning.trainer.trainer'

    module = StreamingDataModule(train=dataset(run), batch_size=8)
    with pytest.raises(ConfigError, match=r'import lightning\.pytorch'):
        module.trainer = Other()
    with pytest.raises(ConfigError, match=r'import lightning\.pytorch'):
        iter(module)


def test_pytorch_lightning_itself_is_refused(run):
    other = pytest.importorskip('pytorch_lightning')

    class Plain(other.LightningModule):
        def training_step(self, batch, batch_idx): ...

        def configure_optimizers(self): ...

    options = {'logger': False, 'enable_checkpointing': False, 'enable_progress_bar': False, 'accelerator': 'cpu'}
    module = StreamingDataModule(train=dataset(run), batch_size=8)
    for arguments in ({'datamodule': module}, {'train_dataloaders': module}):
        with pytest.raises(ConfigError, match=r'import lightning\.pytorch'):
            other.Trainer(devices=1, **options).fit(Plain(), **arguments)


@pytest.mark.parametrize(
    'options', [{}, {'num_sanity_val_steps': 2}, {'val_check_interval': 5}, {'limit_val_batches': 3}]
)
def test_every_validation_is_the_same(options, run):
    run.validate, run.trainer = True, {'max_epochs': 3, **options}
    train(run)
    passes: list[list[list[int]]] = []
    for record in records(run, 'validation')[0]:
        if record['validation'] == 0:
            passes.append([])
        passes[-1].append(record['ids'])
    sanity = passes.pop(0) if 'num_sanity_val_steps' in options else []
    assert sanity == passes[0][: len(sanity)]
    assert all(one == passes[0] for one in passes)
    data = dataset(run, shuffle_seed=1)
    plan = data.plan(epoch=0, global_batch_size=8)
    assert passes[0] == [plan.ids(k).tolist() for k in range(plan.num_batches)][: options.get('limit_val_batches')]


@pytest.mark.parametrize('workers', [0, 2])
def test_validate_test_and_predict_run_alone(workers, run):
    class Evaluated(Model):
        def test_step(self, batch, batch_idx):
            self.write(test=batch_idx, ids=batch['id'].tolist())

        def predict_step(self, batch, batch_idx):
            return batch['id']

    folder = run.streams['a']
    module = StreamingDataModule(
        val={'local': folder}, test={'local': folder}, predict={'local': folder}, batch_size=7, num_workers=workers
    )
    trainer, model = quiet(run), Evaluated(run)
    for _ in range(2):
        trainer.validate(model, module)
        trainer.test(model, module)
        predicted = trainer.predict(model, module)
    expected = [list(range(k, min(k + 7, 60))) for k in range(0, 60, 7)]
    assert ids(run, 'validation') == ids(run, 'test') == expected * 2
    assert [batch.tolist() for batch in predicted] == expected


def test_testing_a_checkpoint_does_not_move_the_training(run):
    run.every_steps, run.validate, run.trainer = 5, True, {'max_epochs': 1}
    trainer, model = train(run)
    module = trainer.datamodule
    before = module.state_dict()
    trainer.validate(model, module, ckpt_path=str(run.checkpoints / 'step5.ckpt'))
    assert module.state_dict() == before


def test_evaluation_datasets_keep_a_batch_size_of_their_own(run):
    module = StreamingDataModule(train=dataset(run), val=[dataset(run, batch_size=16), dataset(run)], batch_size=8)
    quiet(run).fit(Model(run), module)
    assert {len(batch) for batch in ids(run)} == {8}
    sizes = [(record['loader'], len(record['ids'])) for record in records(run, 'validation')[0]]
    assert set(sizes) == {(0, 16), (1, 8)}


def test_a_second_fit_continues_with_the_next_epoch(run):
    run.fits = [1, 3]
    train(run)
    verdict = judge([(run, None)])
    assert verdict.is_exact
    assert verdict.epochs == 3


@pytest.mark.parametrize(
    ('options', 'expected'), [({'max_epochs': 3}, 3), ({'max_epochs': -1, 'max_steps': 40}, None), ({}, 1)]
)
def test_loaders_know_how_many_epochs_there_are(options, expected, run):
    """So that they fetch what the next one begins with, if there is one."""
    module = StreamingDataModule(train=dataset(run), val=dataset(run), batch_size=8)
    trainer = quiet(run, **options)
    trainer.fit(Model(run), module)
    assert trainer.train_dataloader.max_epochs == expected
    assert trainer.val_dataloaders.max_epochs is None


def test_another_trainer_begins_anew(run):
    module = StreamingDataModule(train=dataset(run), batch_size=8)
    for _ in range(2):
        quiet(run).fit(Model(run), module)
    assert ids(run)[:12] == ids(run)[12:]


def test_overfitting_repeats_the_same_batches_and_resumes(run):
    run.trainer, run.on_exception, run.crash_at = {'overfit_batches': 4, 'max_epochs': 3}, True, 6
    with pytest.raises(Crash):
        train(run)
    first = ids(run)
    assert first[4:] == first[:2]
    second = copy.deepcopy(run)
    second.name, second.crash_at, second.checkpoint = 'second', None, str(run.checkpoints / 'exception.ckpt')
    train(second)
    assert ids(run) + ids(second) == first[:4] * 3


def test_fast_dev_run(run):
    run.trainer = {'fast_dev_run': 3}
    train(run)
    assert len(ids(run)) == 3


@pytest.mark.parametrize('mode', ['power', 'binsearch'])
def test_the_tuner_may_scale_the_batch_size(mode, run):
    module = StreamingDataModule(train=dataset(run), val=dataset(run), batch_size=2)
    trainer, model = quiet(run), Model(run)
    found = Tuner(trainer).scale_batch_size(model, datamodule=module, mode=mode, max_trials=3)
    assert found == module.batch_size > 2
    Path(run.out, 'run.rank0.jsonl').unlink()
    trainer.fit(model, module)
    run.batch_size = found
    verdict = judge([(run, None)])
    assert verdict.is_exact
    assert verdict.epochs == 1


def test_the_tuner_may_find_a_learning_rate(run):
    class Tuned(Model):
        lr = 0.1

    module = StreamingDataModule(train=dataset(run), batch_size=8)
    trainer, model = quiet(run), Tuned(run)
    Tuner(trainer).lr_find(model, datamodule=module, num_training=5)
    Path(run.out, 'run.rank0.jsonl').unlink()
    trainer.fit(model, module)
    verdict = judge([(run, None)])
    assert verdict.is_exact
    assert verdict.epochs == 1


def test_the_state_is_small_and_the_callback_runs_first(run):
    run.every_steps, run.trainer = 5, {'max_epochs': 1}
    trainer, _ = train(run)
    assert isinstance(trainer.callbacks[0], PositionCallback)
    checkpoint = torch.load(run.checkpoints / 'step5.ckpt', weights_only=True)
    state = checkpoint['StreamingDataModule']
    assert state == checkpoint['callbacks']['headrace.position']
    assert state['position'] == checkpoint['loops']['fit_loop']['state_dict']['combined_loader'][0]
    assert (state['position']['epoch'], state['position']['sample_in_epoch']) == (0, 40)
    assert {type(value) for value in state['position'].values()} <= {int, str}


def resumed(run: Run, checkpoint: Path, module: StreamingDataModule) -> Run:
    second = copy.deepcopy(run)
    second.name = 'second'
    trainer = quiet(run, max_epochs=3)
    trainer.fit(Model(second), module, ckpt_path=str(checkpoint))
    return second


def test_the_module_class_may_be_renamed(run):
    class Renamed(StreamingDataModule):
        pass

    run.every_steps = 5
    train(run)
    checkpoint = run.checkpoints / 'step15.ckpt'
    second = resumed(run, checkpoint, Renamed(train=dataset(run), batch_size=8))
    assert judge([(run, checkpoint), (second, None)]).is_exact


def test_a_subclass_may_keep_a_state_of_its_own(run):
    class Own(StreamingDataModule):
        def state_dict(self):
            return {'mine': 1}

    run.every_steps = 5
    trainer = quiet(run, max_epochs=2, callbacks=callbacks(run), enable_checkpointing=True)
    trainer.fit(Model(run), Own(train=dataset(run), batch_size=8))
    checkpoint = run.checkpoints / 'step15.ckpt'
    second = resumed(run, checkpoint, Own(train=dataset(run), batch_size=8))
    assert judge([(run, checkpoint), (second, None)]).is_exact


def test_a_checkpoint_of_loaders_passed_by_hand_is_taken_over(run):
    run.every_steps, run.by_hand = 5, True
    train(run)
    checkpoint = run.checkpoints / 'step15.ckpt'
    second = resumed(run, checkpoint, StreamingDataModule(train=dataset(run), batch_size=8))
    verdict = judge([(run, checkpoint), (second, None)])
    assert verdict.is_exact
    assert verdict.epochs == 3


def test_a_checkpoint_without_a_position_starts_a_whole_epoch(run, tmp_path):
    run.every_steps = 5
    train(run)
    checkpoint = torch.load(run.checkpoints / 'step15.ckpt', weights_only=True)
    del checkpoint['StreamingDataModule'], checkpoint['callbacks']['headrace.position']
    del checkpoint['loops']['fit_loop']['state_dict']['combined_loader']
    foreign = tmp_path / 'foreign.ckpt'
    torch.save(checkpoint, foreign)
    with pytest.warns(UserWarning, match='holds no position of the data'):
        second = resumed(run, foreign, StreamingDataModule(train=dataset(run), batch_size=8))
    assert [record['epoch'] for record in records(second)[0]] == [2] * 12


def test_a_changed_global_batch_is_said(run):
    run.every_steps = 5
    train(run)
    with pytest.warns(UserWarning, match='global batch size was 8'):
        resumed(run, run.checkpoints / 'step5.ckpt', StreamingDataModule(train=dataset(run), batch_size=16))


class Noisy(Model):
    """Draws in its steps, and may fail in one after the draw."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        noise, number = torch.rand(()).item(), self.trainer.fit_loop.epoch_loop.total_batch_idx
        if number == self.run_spec.crash_at:
            raise Crash
        self.write(noise=noise, number=number, step=self.trainer.global_step, epoch=0, ids=[])
        return self.layer(batch['row']).mean()


@pytest.mark.parametrize(
    ('at', 'accumulate', 'workers', 'persistent'),
    [
        (5, 1, 0, False),
        (12, 1, 1, True),
        (13, 3, 1, False),
        pytest.param(12, 1, 0, False, marks=pytest.mark.slow),
        pytest.param(5, 1, 2, False, marks=pytest.mark.slow),
        pytest.param(5, 1, 2, True, marks=pytest.mark.slow),
        pytest.param(12, 1, 1, False, marks=pytest.mark.slow),
        pytest.param(5, 2, 0, False, marks=pytest.mark.slow),
        pytest.param(13, 3, 1, True, marks=pytest.mark.slow),
    ],
)
def test_random_generators_may_be_restored(run, at: int, accumulate: int, workers: int, persistent: bool) -> None:
    """`at`: number of the batch that fails, or that a checkpoint is saved before."""

    def fit(name: str, checkpoint: Path | None, crash_at: int | None = None) -> dict[int, float]:
        one = copy.deepcopy(run)
        one.name, one.crash_at = name, crash_at
        pl.seed_everything(1 if checkpoint is None else 2)
        sections = {name: dataset(run) for name in ('train', 'val')}
        module = StreamingDataModule(
            **sections, batch_size=8, num_workers=workers, save_rng=True, persistent_workers=persistent
        )
        callbacks = [
            pl.callbacks.OnExceptionCheckpoint(one.checkpoints, 'last'),
            pl.callbacks.ModelCheckpoint(one.checkpoints, '{step}', every_n_train_steps=at, save_top_k=-1),
        ]
        options = {'accumulate_grad_batches': accumulate, 'num_sanity_val_steps': 2, 'max_epochs': 2}
        trainer = quiet(run, enable_checkpointing=True, callbacks=callbacks, **options)
        with contextlib.suppress(Crash):
            trainer.fit(Noisy(one), module, ckpt_path=checkpoint)
        return {record['number']: record['noise'] for record in records(one, 'noise')[0]}

    whole = fit('whole', None)
    fit('first', None, crash_at=at)
    rest = fit('rest', Path(run.out, 'first', 'last.ckpt'))
    assert min(rest) == at - at % 12 % accumulate
    assert rest == {number: whole[number] for number in rest}
    if accumulate == 1:
        after = fit('after', Path(run.out, 'whole', f'step={at}.ckpt'))
        assert after == {number: whole[number] for number in range(at, 24)}


@pytest.mark.parametrize('statistics', [False, True])
def test_a_training_says_where_its_data_continue_and_how_long_it_waited(run, caplog, capsys, statistics: bool) -> None:
    caplog.set_level(logging.INFO, 'lightning.pytorch')
    run.every_steps = 5
    train(run)
    assert 'the data continue' not in caplog.text
    assert len(re.findall(r'headrace: waited [0-9.]+ % for data', caplog.text)) == 1
    caplog.clear()
    path = run.checkpoints / 'step15.ckpt'
    saved = torch.load(path, weights_only=True)
    saved['StreamingDataModule']['ranks'] = 8
    torch.save(saved, path)
    trainer = quiet(run, max_epochs=2, callbacks=[DataStatistics()] if statistics else [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        trainer.fit(Model(run), StreamingDataModule(train=dataset(run), batch_size=8), ckpt_path=path)
    assert not [one for one in caught if '__len__' in str(one.message)]
    assert 'headrace: the data continue at epoch 1, sample 24 (checkpoint of 8 ranks, now 1)' in caplog.text
    assert ('headrace: waited' in caplog.text) is not statistics
    assert ('headrace: waited' in capsys.readouterr().err) is statistics


def test_loaders_passed_by_hand_train_every_epoch_in_its_order(run):
    run.by_hand = True
    train(run)
    verdict = judge([(run, None)])
    assert verdict.is_exact
    assert verdict.epochs == 3
