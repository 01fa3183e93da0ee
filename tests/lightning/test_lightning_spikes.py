"""Reports of `LossSpikes` about a spike, and a run that skips its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import StreamingDataLoader
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.lightning import LossSpikes, StreamingDataModule
from tests.support import support_file
from tests.support.trainers.lightning_spikes import SPIKES, Model, data, trainer
from tests.support.trainers.ranks import run_ranks

pytestmark = [pytest.mark.filterwarnings('ignore')]

CONFIG = """
global_batch_size: 8
train:
  shuffle: true
  streams:
    a: {{local: {a}}}
    b: {{local: {b}}}
"""


@pytest.fixture
def config(mixes, tmp_path: Path) -> Path:
    path = tmp_path / 'mix.yaml'
    path.write_text(CONFIG.format(**mixes['uneven']))
    return path


def data_of(config: Path) -> Any:
    module = StreamingDataModule(config)
    module.trainer = trainer(config.parent)
    module.setup('fit')
    return module.train_dataloader().dataset


def poison_of(config: Path, positions: range) -> list[int]:
    return data_of(config).order(0).at(np.array(positions)).tolist()


def report(folder: Path, batch: int) -> dict[str, Any]:
    return json.loads((folder / f'loss-spike-batch{batch}.json').read_text())


def test_a_spike_is_explained_and_skipped(config: Path, tmp_path: Path, capsys) -> None:
    poison = poison_of(config, range(72, 88))  # batches 9 and 10
    out = tmp_path / 'out'
    spiked, model = trainer(out, LossSpikes(**SPIKES, stop=True), every=4), Model(poison)
    with pytest.warns(UserWarning, match=r'The loss of batch 10 \(step 10\) was 100, where .*batch10.json'):
        spiked.fit(model, datamodule=StreamingDataModule(config))
    assert len(model.ids) == 11  # a batch is judged when the next one is done
    assert model.ids[9] + model.ids[10] == sorted(poison[:8]) + sorted(poison[8:])
    found = report(out, 9)
    assert (found['step'], found['optimizer_step'], found['skip']) == (9, 9, [[72, 80]])
    assert found['loss'] == pytest.approx(100)
    assert [row['id'] for row in found['batches'][0]['rows']] == poison[:8]
    assert report(out, 10)['skip'] == [[72, 88]]
    # The checkpoint before it, and the configuration with what was written last.
    resumed = tmp_path / 'resumed.yaml'
    resumed.write_text(f'defaults: [mix.yaml, {out}/loss-spike-batch10.yaml]\n')
    rest, again = trainer(tmp_path / 'again', LossSpikes(**SPIKES), every=4), Model(poison)
    rest.fit(again, datamodule=StreamingDataModule(resumed), ckpt_path=out / 'step=8.ckpt')
    assert sorted(i for ids in model.ids[:8] + again.ids for i in ids) == sorted(set(range(101)) - set(poison))
    assert not list((tmp_path / 'again').glob('loss-spike*'))
    # The shell says the same, from the beginning, from a checkpoint, and from the file beside it.
    for state in ([], ['--state', str(out / 'step=8.ckpt')], ['--state', str(out / 'step=8.headrace.json')]):
        assert main(['skip', str(config), '--step', '9', *state, '--json']) == 0
        assert json.loads(capsys.readouterr().out)['batches'] == found['batches']


def test_batches_of_an_accumulated_step_are_told_apart(config: Path, tmp_path: Path) -> None:
    run = trainer(tmp_path, LossSpikes(**SPIKES, before=3, after=1), accumulate_grad_batches=2, max_epochs=2)
    run.fit(Model([], bad_batch=15), datamodule=StreamingDataModule(config))
    found = report(tmp_path, 15)
    assert (found['step'], found['optimizer_step']) == (15, 8)  # epoch 0 had 7 steps, the last of one batch
    assert found['loss'] == pytest.approx(100)
    assert [(b['step'], b['epoch'], b['batch']) for b in found['batches']] == [
        (12, 0, 12), (13, 1, 0), (14, 1, 1), (15, 1, 2), (16, 1, 3),
    ]  # fmt: skip
    assert found['skip'] == [[96, 133]]


def test_several_loaders_have_a_report_each(mixes, tmp_path: Path) -> None:
    a, b = mixes['uneven'].values()
    train = {'a': {'local': a, 'skip': [[0, 8]]}, 'b': {'local': b}}
    module = StreamingDataModule(train=train, train_mode='max_size', batch_size=8)  # 7 batches of a, 6 of b
    run = trainer(tmp_path, LossSpikes(**SPIKES))
    run.fit(Model([60 + 37, 59]), module)  # the 38th sample of b, in its batch 4, and the last of a, in its batch 6
    both, alone = report(tmp_path, 4), report(tmp_path, 6)
    assert {name: found['skip'] for name, found in both['loaders'].items()} == {
        'a': [[0, 8], [40, 48]],
        'b': [[32, 40]],
    }
    assert alone['skip'] == [[0, 8], [40, 48], [56, 60]]
    assert [path.name for path in tmp_path.glob('*.yaml')] == ['loss-spike-batch6.yaml']


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_a_loss_that_is_no_number_is_a_spike_at_once(config: Path, tmp_path: Path, bad: float) -> None:
    poison = poison_of(config, range(8))

    class Failing(Model):
        def on_train_batch_end(self, *_: Any) -> None:
            raise RuntimeError('as told')

    with pytest.raises(RuntimeError, match='as told'):
        trainer(tmp_path, LossSpikes(), max_steps=1).fit(Failing(poison, bad=bad), StreamingDataLoader(data_of(config)))
    found = report(tmp_path, 0)
    assert (found['loss'], found['median'], found['skip']) == (str(bad), None, [[0, 8]])


def test_only_so_many_spikes_are_written(config: Path, tmp_path: Path) -> None:
    poison = poison_of(config, range(64, 96))
    with pytest.warns(UserWarning, match='The loss of batch') as warned:
        trainer(tmp_path, LossSpikes(**SPIKES, limit=2)).fit(Model(poison), datamodule=StreamingDataModule(config))
    said = [str(warning.message) for warning in warned if 'The loss of batch' in str(warning.message)]
    assert len(said) == 3  # of four
    assert said[-1].endswith('nothing more is written of spikes.')
    assert sorted(path.name for path in tmp_path.glob('*.json')) == [
        'loss-spike-batch8.json',
        'loss-spike-batch9.json',
    ]


def test_a_resumed_run_remembers_the_losses(config: Path, tmp_path: Path) -> None:
    poison = poison_of(config, range(48, 56))
    trainer(tmp_path, LossSpikes(**SPIKES), every=6, max_steps=6).fit(Model([]), datamodule=StreamingDataModule(config))
    run = trainer(tmp_path, LossSpikes(**SPIKES))
    run.fit(Model(poison), datamodule=StreamingDataModule(config), ckpt_path=tmp_path / 'step=6.ckpt')
    assert report(tmp_path, 6)['skip'] == [[48, 56]]


def test_a_logged_value_may_be_watched(config: Path, tmp_path: Path) -> None:
    poison = poison_of(config, range(48, 56))
    run = trainer(tmp_path, LossSpikes(**SPIKES, monitor='loss_of_rank'))
    run.fit(Model(poison), datamodule=StreamingDataModule(config))
    assert report(tmp_path, 6)['skip'] == [[48, 56]]
    with pytest.raises(ConfigError, match=r"watches 'loss', which is not logged .* \['loss_of_rank'\]"):
        trainer(tmp_path, LossSpikes(monitor='loss')).fit(Model([]), datamodule=StreamingDataModule(config))


def test_wrong_use_is_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='the training data is DataLoader'):
        plain = DataLoader([{'id': 1, 'row': torch.zeros(4)}])
        trainer(tmp_path, LossSpikes()).fit(Model([]), plain)
    with pytest.raises(ConfigError, match='with manual optimization it returned'):
        trainer(tmp_path, LossSpikes()).fit(Model([], manual=True), datamodule=StreamingDataModule(config))
    for wrong in ({'factor': 0}, {'warmup': 1}, {'window': 10}, {'before': -1}, {'limit': 0}):
        with pytest.raises(ConfigError, match=f'`{next(iter(wrong))}`'):
            LossSpikes(**wrong)


def test_ranks_watch_their_mean(mixes, tmp_path: Path) -> None:
    """One row is bad, which rank 0 does not have."""
    folders = mixes['even']
    plan = StreamingDataLoader(data(folders), batch_size=8).plan(0)
    row = int(plan.ids(6)[1])
    program = support_file('trainers/lightning_spikes.py')
    run_ranks('lightning', 2, program, tmp_path, 2, row, *folders.values(), folder=tmp_path)
    ranks = [json.loads((tmp_path / 'mean' / f'rank{rank}.json').read_text()) for rank in range(2)]
    assert [len(ids) for ids in ranks] == [8, 8]  # both stopped
    assert [row in ids[6] for ids in ranks] == [False, True]
    found = report(tmp_path / 'mean', 6)
    assert [r['rank'] for r in found['batches'][0]['rows'] if r['id'] == row] == [1]
    assert found['skip'] == [[48, 56]]
    assert not list((tmp_path / 'own').glob('loss-spike*'))
    assert 'needs `sync_dist=True` on several ranks' in (tmp_path / 'refused0').read_text()
