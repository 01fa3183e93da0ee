"""Logged figures of the data under Composer."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.loggers import FileLogger, MLFlowLogger, TensorboardLogger
from torch.utils.data import DataLoader

from composer import Trainer
from headrace.composer import DataStatistics, StreamingPosition
from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError
from tests.support import support_file
from tests.support.trainers.composer_legs import Linear
from tests.support.trainers.composer_runs import make_data
from tests.support.trainers.composer_statistics import train
from tests.support.trainers.ranks import run_ranks
from tests.support.trainers.statistics_mix import mix

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]

SIZES = {'a': 60, 'b': 36}


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp('streams')
    return {name: make_data(root / name, size) for name, size in SIZES.items()}


def stratified(folders: dict[str, str]) -> StreamingDataset:
    return mix(folders, batching_method='stratified')


def test_figures_are_those_of_the_batches(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    dataset = stratified(folders)
    logged, ids, loader = train(dataset, size=8)
    assert logged['data/samples'] == [8 * n for n in range(1, 13)]
    assert len(ids) == 96
    last = {name: values[-1] for name, values in logged.items()}
    assert {name: last[f'mix/{name}/samples'] for name in SIZES} == loader.stats().stream_samples
    assert last['mix/a/promised'] == pytest.approx(0.4)
    assert last['mix/a/share'] == pytest.approx(0.4, abs=0.02)
    for tokens, samples in zip(logged['data/tokens_per_second'], logged['data/samples_per_second'], strict=True):
        assert tokens == pytest.approx(10 * samples, rel=1e-6)
    assert all(0 <= share <= 1 for share in logged['data/wait_share'])
    assert 'headrace: waited ' in capsys.readouterr().err


@pytest.mark.parametrize('at', [5, 12])
def test_a_resumed_run_counts_on(folders: dict[str, str], tmp_path: Path, at: int) -> None:
    whole, _, _ = train(stratified(folders), size=8, max_duration='2ep')
    saving = {'save_folder': str(tmp_path), 'save_filename': 'ba{batch}.pt', 'save_interval': '1ba'}
    train(stratified(folders), size=8, max_duration=f'{at}ba', **saving)
    rest, _, _ = train(
        mix(folders, batching_method='stratified'), size=8, max_duration='2ep', load_path=str(tmp_path / f'ba{at}.pt')
    )
    for name in ('data/samples', 'mix/a/samples', 'mix/b/samples', 'mix/b/share', 'mix/b/promised'):
        assert rest[name] == pytest.approx(whole[name][at:]), name


def test_ranks_are_logged_together(folders: dict[str, str], tmp_path: Path) -> None:
    program = support_file('trainers/composer_statistics.py')
    run_ranks('composer', 2, program, tmp_path, *folders.values(), folder=tmp_path)
    ranks: list[dict[str, Any]] = [json.loads((tmp_path / f'rank{rank}.json').read_text()) for rank in range(2)]
    last = {name: values[-1] for name, values in ranks[0]['logged'].items()}
    assert last['data/samples'] == 96 == len(ranks[0]['ids'] + ranks[1]['ids'])
    assert last['data/bytes_downloaded'] == ranks[0]['bytes'] + ranks[1]['bytes'] > 0
    assert last['data/tokens_per_second'] == pytest.approx(10 * last['data/samples_per_second'], rel=1e-6)


def test_wrong_use_is_refused_before_the_first_step(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match='at least 1'):
        DataStatistics(0)
    plain = DataLoader(StreamingDataset(local=folders['a'], batch_size=8), batch_size=8)
    model = Linear()
    trainer = Trainer(
        model=model,
        train_dataloader=plain,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration='1ep',
        callbacks=[StreamingPosition(), DataStatistics()],
        device='cpu',
        progress_bar=False,
    )
    with pytest.raises(ConfigError, match='the train loader is DataLoader'):
        trainer.fit()


def logged_in_file(folder: Path) -> dict[str, int]:
    """How often each name was logged."""
    found = re.findall(r'"?((?:data|mix)/[\w/]+)"?: ', (folder / 'log.txt').read_text())
    return Counter(found)


def logged_in_tensorboard(folder: Path) -> dict[str, int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = Counter[str]()
    for file in folder.rglob('events.out.tfevents.*'):
        events = EventAccumulator(str(file), size_guidance={'scalars': 0})
        events.Reload()
        found.update({name: len(events.Scalars(name)) for name in events.Tags()['scalars']})
    return found


def logged_in_mlflow(folder: Path) -> dict[str, int]:
    import mlflow

    client = mlflow.MlflowClient(f'sqlite:///{folder}/log.db')
    (run,) = [run for kind in client.search_experiments() for run in client.search_runs([kind.experiment_id])]
    return {name: len(client.get_metric_history(run.info.run_id, name)) for name in run.data.metrics}


LOGGERS: dict[str, Any] = {
    'file': (
        lambda folder: FileLogger(str(folder / 'log.txt'), capture_stdout=False, capture_stderr=False),
        logged_in_file,
    ),
    'tensorboard': (lambda folder: TensorboardLogger(str(folder)), logged_in_tensorboard),
    'mlflow': (
        lambda folder: MLFlowLogger(
            '/data',
            tracking_uri=f'sqlite:///{folder}/log.db',
            log_system_metrics=False,
            synchronous=True,
            log_duplicated_metric_every_n_steps=1,
        ),
        logged_in_mlflow,
    ),
}


@pytest.mark.parametrize('name', ['file', *(pytest.param(name, marks=pytest.mark.slow) for name in [*LOGGERS][1:])])
def test_a_logger_of_composer_holds_each_figure(name: str, folders: dict[str, str], tmp_path: Path) -> None:
    if name != 'file':
        pytest.importorskip(name)
    make, read = LOGGERS[name]
    logged, _, _ = train(stratified(folders), size=8, loggers=[make(tmp_path)])
    assert {key: count for key, count in read(tmp_path).items() if key.startswith(('data/', 'mix/'))} == {
        key: len(values) for key, values in logged.items()
    }
