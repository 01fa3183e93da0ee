"""Figures that `DataStatistics` logs and shows."""

from __future__ import annotations

import csv
import json
import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from headrace import PADDING, STREAM, StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError
from headrace.lightning import DataStatistics, StreamingDataModule
from headrace.metrics import DataMeter, PerStreamMean, WithoutPadding
from tests.support import support_file
from tests.support.trainers.lightning_statistics import Model, trainer
from tests.support.trainers.ranks import run_ranks
from tests.support.trainers.statistics_mix import mix

pytestmark = [pytest.mark.filterwarnings('ignore')]

SIZES = {'a': 60, 'b': 41}


def rows(out: Path) -> list[dict[str, float]]:
    """The logged figures, step by step."""
    with (out / 'run' / 'version_0' / 'metrics.csv').open() as file:
        found = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return [row for row in found if 'data/samples' in row]


def shares(ids: list[int]) -> Counter[str]:
    return Counter('a' if sample < SIZES['a'] else 'b' for sample in ids)


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('by_hand', [False, True], ids=['module', 'by-hand'])
def test_a_run_is_logged(mixes, tmp_path, workers, by_hand):
    model, data = Model(), mix(mixes['uneven'], tmp_path / 'cache', batch_size=4)
    run = trainer(tmp_path, DataStatistics(), log_every_n_steps=5)
    if by_hand:
        run.fit(model, StreamingDataLoader(data, num_workers=workers))
    else:
        run.fit(model, datamodule=StreamingDataModule(train=data, num_workers=workers))
    logged = rows(tmp_path)
    assert [row['step'] for row in logged] == [4, 9, 14, 19, 24]  # as Lightning logs every 5 steps
    for row in logged:
        count = 4 * (int(row['step']) + 1)
        had = shares(model.ids[:count])
        assert row['data/samples'] == count
        assert {name: row[f'mix/{name}/samples'] for name in SIZES} == had
        assert row['mix/a/share'] == pytest.approx(had['a'] / count)
        assert row['mix/a/promised'] == pytest.approx(0.4)
        assert row['data/samples_per_second'] > 0
        assert 0 <= row['data/wait_share'] <= 1
        assert 'data/tokens_per_second' not in row
    size = sum(path.stat().st_size for folder in mixes['uneven'].values() for path in Path(folder).glob('*.mds'))
    assert logged[-1]['data/bytes_downloaded'] <= size == run.train_dataloader.stats().bytes_downloaded
    parts = [logged[-1][f'data/{name}/bytes_downloaded'] for name in SIZES]
    assert all(parts)
    assert sum(parts) == logged[-1]['data/bytes_downloaded']


def test_ranks_are_logged_together(mixes, tmp_path):
    program = support_file('trainers/lightning_statistics.py')
    run_ranks('lightning', 2, program, tmp_path, 2, *mixes['even'].values(), folder=tmp_path)
    ranks = [json.loads((tmp_path / f'rank{rank}.json').read_text()) for rank in range(2)]
    last = rows(tmp_path)[-1]
    assert last['data/samples'] == 96 == len(ranks[0]['ids'] + ranks[1]['ids'])
    had = shares(ranks[0]['ids'] + ranks[1]['ids'])
    assert {name: last[f'mix/{name}/samples'] for name in SIZES} == had
    assert last['data/bytes_downloaded'] == ranks[0]['bytes'] + ranks[1]['bytes']
    assert sum(last[f'data/{name}/bytes_downloaded'] for name in SIZES) == last['data/bytes_downloaded']
    assert last['data/cache_hits'] == ranks[0]['hits'] + ranks[1]['hits']
    assert last['data/tokens_per_second'] == pytest.approx(10 * last['data/samples_per_second'], rel=1e-3)


def test_accumulated_batches_count_where_a_loader_begins_anew(mixes, tmp_path):
    short, long = mixes['even'].values()
    data = StreamingDataModule(train={'a': {'local': short}, 'b': {'local': long}}, batch_size=12)  # 5 and 3 batches
    run = trainer(tmp_path, DataStatistics(1), accumulate_grad_batches=2)

    class OfTwo(Model):
        def training_step(self, batch, batch_idx):
            return self.layer(batch['a']['row']).mean()

    run.fit(OfTwo(), data)
    last = rows(tmp_path)[-1]
    counts = {name: value for name, value in last.items() if name.endswith('/samples')}
    assert sorted(value for name, value in counts.items() if name.startswith('mix')) == [60, 60]
    assert last['data/samples'] == 120


@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('is_crash', [False, True], ids=['step', 'exception'])
def test_a_resumed_run_counts_on_where_the_checkpoint_was(mixes, tmp_path, accumulate, is_crash):
    class Failing(Model):
        def training_step(self, batch, batch_idx):
            if is_crash and batch_idx == 10:
                raise RuntimeError('as told')
            return super().training_step(batch, batch_idx)

    def data():
        return StreamingDataModule(train=mix(mixes['uneven']), batch_size=4)

    options = {'log_every_n_steps': 1, 'accumulate_grad_batches': accumulate, 'max_epochs': 2}
    whole, part, resumed = tmp_path / 'whole', tmp_path / 'part', tmp_path / 'resumed'
    trainer(whole, DataStatistics(), **options).fit(Model(), datamodule=data())
    saving = ModelCheckpoint(part, filename='last', every_n_train_steps=2, save_on_exception=is_crash)
    first = trainer(part, DataStatistics(), saving, **{**options, 'enable_checkpointing': True, 'max_steps': 4})
    if is_crash and accumulate == 1:
        first.fit_loop.epoch_loop.max_steps = -1
        with pytest.raises(RuntimeError, match='as told'):
            first.fit(Failing(), datamodule=data())
    else:
        first.fit(Model(), datamodule=data())
    checkpoint = str(max(part.glob('*.ckpt'), key=lambda path: path.stat().st_mtime))
    trainer(resumed, DataStatistics(), **options).fit(Model(), datamodule=data(), ckpt_path=checkpoint)
    counts = [name for name in rows(whole)[0] if name.endswith(('/samples', 'promised'))]
    expected = {row['step']: [row[name] for name in counts] for row in rows(whole)}
    for row in rows(resumed):
        assert [row[name] for name in counts] == pytest.approx(expected[row['step']])
    assert rows(resumed)[-1]['data/samples'] == 202
    assert len(rows(resumed)) < len(rows(whole))


class SlowRead(StreamingDataset):
    """Takes 30 ms for each sample, by a clock that only it and its trainer turn."""

    seconds = 0.0

    def __getitem__(self, at):
        self.seconds += 0.03
        return super().__getitem__(at)


def test_slow_data_shows_as_waits_and_stalls(make_dataset, tmp_path, monkeypatch):
    class OfTenth(Model):
        def training_step(self, batch, batch_idx):
            data.seconds += 0.1
            return super().training_step(batch, batch_idx)

    data, statistics = SlowRead(local=str(make_dataset()), batch_size=4), DataStatistics(5)
    monkeypatch.setattr('headrace.dataset.statistics.time', SimpleNamespace(perf_counter=lambda: data.seconds))
    monkeypatch.setattr(statistics._observer, 'meter', DataMeter(clock=lambda: data.seconds))
    trainer(tmp_path, statistics, max_steps=10).fit(OfTenth(), StreamingDataLoader(data))
    for row in rows(tmp_path):
        # Five batches take 600 ms, all of which is waited for, and their steps 500.
        assert 20 / row['data/samples_per_second'] == pytest.approx(1.1)
        assert row['data/wait_share'] == pytest.approx(0.6 / 1.1)
    assert rows(tmp_path)[-1]['data/stalls'] == 9  # all but the first
    assert rows(tmp_path)[-1]['data/seconds_to_first_batch'] == pytest.approx(0.12)


def test_time_in_validation_is_no_time_of_training(make_dataset, tmp_path):
    class SlowValidation(Model):
        def validation_step(self, batch, batch_idx):
            time.sleep(1)

    data = {'local': str(make_dataset())}
    run = trainer(tmp_path, DataStatistics(10), val_check_interval=5, limit_val_batches=1, max_steps=20)
    begin = time.monotonic()
    run.fit(SlowValidation(), datamodule=StreamingDataModule(train=data, val=data, batch_size=5))
    seconds = time.monotonic() - begin
    # Rates are of the rest: the second 10 steps held one second of validation at least.
    logged = rows(tmp_path)
    assert sum(50 / row['data/samples_per_second'] for row in logged) < seconds - 3


@pytest.mark.parametrize('bar_class', [TQDMProgressBar, RichProgressBar])
def test_a_progress_bar_of_any_kind_shows_the_data(mixes, tmp_path, bar_class):
    class Bar(bar_class):
        def get_metrics(self, trainer, pl_module):
            return {**super().get_metrics(trainer, pl_module), 'own': 1}

    seen: list[dict[str, Any]] = []

    class Watching(Model):
        def on_train_epoch_end(self):
            seen.append(self.trainer.progress_bar_callback.get_metrics(self.trainer, self))

    bar, statistics = Bar(), DataStatistics()
    data = StreamingDataModule(train=mix(mixes['uneven'], tmp_path / 'cache'), batch_size=4)
    run = trainer(tmp_path, statistics, bar, enable_progress_bar=True)
    run.fit(Watching(), datamodule=data)
    shown = seen[0]
    assert shown['data'].endswith(' kB')
    assert shown['stall'].endswith('%')
    assert sum(map(float, shown['mix'].split('/'))) == pytest.approx(1)
    assert shown['own'] == 1
    assert 'data' not in bar.get_metrics(run, run.lightning_module)  # left as it was


def test_a_loop_without_a_loader_of_headrace_is_refused_before_its_first_step(tmp_path):
    model = Model()
    with pytest.raises(ConfigError, match='the training data is DataLoader'):
        trainer(tmp_path, DataStatistics()).fit(model, DataLoader([{'id': 0, 'row': torch.zeros(4)}]))
    assert model.ids == []
    with pytest.raises(ConfigError, match='at least 1'):
        DataStatistics(0)


def test_one_loader_of_several_and_several(mixes, tmp_path):
    class Pair(Model):
        def training_step(self, batch, batch_idx):
            return self.layer(batch['x']['row']).mean()

    def loader():
        return StreamingDataLoader(mix(mixes['even'], batch_size=4))

    other = DataLoader([torch.zeros(1)] * 10)
    trainer(tmp_path / '1', DataStatistics(1)).fit(Pair(), {'x': loader(), 'y': other})
    assert rows(tmp_path / '1')[-1]['data/samples'] == 96
    trainer(tmp_path / '2', DataStatistics(1), max_steps=5).fit(Pair(), {'x': loader(), 'y': loader()})
    last = rows(tmp_path / '2')[-1]
    assert last['data/samples'] == 40
    assert last['mix/x/a/samples'] + last['mix/x/b/samples'] == 20


@pytest.mark.parametrize('options', [{'overfit_batches': 3}, {'reload_dataloaders_every_n_epochs': 1}])
def test_loaders_that_lightning_makes_anew_are_followed(mixes, tmp_path, options):
    model = Model()
    run = trainer(tmp_path, DataStatistics(1), max_epochs=3, **options)
    run.fit(model, datamodule=StreamingDataModule(train=mix(mixes['even']), batch_size=8))
    assert [row['data/samples'] for row in rows(tmp_path)] == [8.0 * n for n in range(1, len(rows(tmp_path)) + 1)]
    assert rows(tmp_path)[-1]['data/samples'] == len(model.ids)


class StreamLoss(Model):
    """As in the documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.stream_loss = PerStreamMean(['a', 'b'], prefix='loss/')
        self.accuracy = WithoutPadding(MeanMetric())

    def training_step(self, batch, batch_idx):
        self.ids += batch['id'].tolist()
        losses = self.layer(batch['row']).squeeze(1)
        self.stream_loss.update(batch['id'].float(), batch[STREAM])
        return losses.mean()

    def on_train_epoch_end(self):
        self.log_dict(self.stream_loss.compute())
        self.stream_loss.reset()

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(batch['id'].float(), is_padding=batch[PADDING])
        self.log('accuracy', self.accuracy)


@pytest.mark.parametrize('yaml', [False, True], ids=['arguments', 'yaml'])
def test_loss_by_stream_and_a_metric_without_padding_are_logged(mixes, tmp_path, yaml):
    model, streams = StreamLoss(), {name: {'local': folder} for name, folder in mixes['uneven'].items()}
    if yaml:
        section = {'streams': streams, 'loader': {'mark_streams': True}}
        data = StreamingDataModule({'global_batch_size': 8, 'train': section, 'eval': section})
    else:
        train = mix(mixes['uneven'], epoch_size=101)
        data = StreamingDataModule(train=train, val=mix(mixes['uneven']), batch_size=8, mark_streams=True)
    run = trainer(tmp_path)
    run.fit(model, datamodule=data)
    for name, ids in {'a': [i for i in model.ids if i < 60], 'b': [i for i in model.ids if i >= 60]}.items():
        assert run.callback_metrics[f'loss/{name}'] == pytest.approx(sum(ids) / len(ids))
    assert 0 < run.callback_metrics['accuracy'] < 101


def test_a_run_ends_with_a_line_and_exporters_get_its_figures(mixes, tmp_path, capsys):
    exported: list[dict[str, float]] = []
    statistics = DataStatistics(5, detailed=True, exporters=[exported.append], per_stream=False)
    run = trainer(tmp_path, statistics)
    run.loggers = []
    run.fit(Model(), datamodule=StreamingDataModule(train=mix(mixes['even'], batch_size=8)))
    assert [figures['data/samples'] for figures in exported] == [40, 80]
    assert exported[0]['data/retries'] == 0
    assert exported[0]['data/batch_seconds_p50'] > 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith('headrace: ')]
    assert re.fullmatch(r'headrace: waited [\d.]+ % for data; 0 B; 0 retries; mix within [\d.]+ %', line)
