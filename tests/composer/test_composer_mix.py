"""Metrics by stream, a curriculum, and loss spikes under Composer, on one rank and on two."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer
from headrace import MDSWriter
from headrace.cli import main
from headrace.composer import LossSpikes, stream_metrics, streaming_data_spec
from headrace.errors import ConfigError
from headrace.metrics import PerStream, PerStreamMean
from headrace.mixing import build_loader, load_config
from headrace.order import Topology
from tests.support.trainers.composer_legs import Linear
from tests.support.trainers.composer_mix import MixLeg, row_loss, run
from tests.support.trainers.composer_runs import lines, run_legs, trained

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]

SIZES = {'a': 60, 'b': 41}  # ids 0 to 59, and 60 to 100
BATCHES = 24  # of two epochs

CONFIG = """
global_batch_size: 8
train:
  shuffle: true
  batching_method: stratified
  epoch_size: 96
  num_canonical_nodes: 1
  schedule:
    - {{at: 0, proportions: {{a: 1}}}}
    - {{at: 32, proportions: {{a: 3, b: 1}}}}
    - {{at: 160, proportions: {{a: 1, b: 3}}, change: linear}}
  streams: &streams
    a: {{local: {root}/a}}
    b: {{local: {root}/b}}
  loader: {{mark_streams: true}}
eval:
  both: {{shuffle: true, streams: *streams, loader: {{mark_streams: true}}}}
"""
ONCE = ['~train.schedule', '~train.epoch_size']  # each of the 101 samples once in an epoch
POISON = range(72, 88)  # samples of the run: its batches 9 and 10
SPIKES = {'warmup': 4, 'window': 20}


@pytest.fixture(scope='module')
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('mix')
    first = 0
    for name, size in SIZES.items():
        with MDSWriter(out=str(root / name), columns={'id': 'int'}, size_limit=200) as writer:
            for number in range(first, first + size):
                writer.write({'id': number})
        first += size
    path = root / 'mix.yaml'
    path.write_text(CONFIG.format(root=root))
    return str(path)


def loader_of(config: str, *overrides: str) -> Any:
    return build_loader(load_config(config, overrides=overrides).train, topology=Topology())


def planned(config: str, *overrides: str, state: dict[str, Any] | None = None, epochs: int = 2) -> list[list[int]]:
    """The ids of each global batch, without a trainer."""
    loader = loader_of(config, *overrides)
    if state is not None:
        loader.load_state_dict(state)
    epoch, start = loader.next_pass()
    plans = [loader.plan(e, start if e == epoch else 0) for e in range(epoch, epochs)]
    return [sorted(plan.ids(k).tolist()) for plan in plans for k in range(plan.num_batches)]


@pytest.fixture(scope='module')
def poison(config: str) -> list[int]:
    order = loader_of(config, *ONCE).dataset.order(0)
    return order.at(np.array(POISON)).tolist()


@pytest.fixture(scope='module')
def runs(config: str, poison: list[int], tmp_path_factory: pytest.TempPathFactory) -> dict[str, MixLeg]:
    """A whole run on one rank; its rest on two, from the middle of the ramp; and one with a spike on each."""
    out = str(tmp_path_factory.mktemp('runs'))
    whole = MixLeg('whole', out, config, save='4ba', evaluate=True)
    rest = MixLeg('rest', out, config, load=str(whole.checkpoints / 'ba12.pt'), evaluate=True, save='4ba')
    spiked = MixLeg('spiked', out, config, ONCE, '1ep', save='4ba', poison=poison)
    spiked.spikes = {**SPIKES, 'after': 1, 'stop': True}
    # One row only, which rank 0 does not have.
    quiet = MixLeg('quiet', out, config, ONCE, '12ba', save='4ba', poison=poison[-1:], spikes=SPIKES)
    run(whole)
    run(spiked)
    run_legs(2, [rest, quiet], program='composer_mix.py')
    return {leg.name: leg for leg in (whole, rest, spiked, quiet)}


def logged(leg: MixLeg, name: str) -> list[list[float]]:
    return json.loads((Path(leg.out) / f'{leg.name}.rank0.logged.json').read_text())[name]


def batches(leg: MixLeg, ranks: int = 1) -> list[list[int]]:
    return list(trained(leg, ranks).values())


# -- metrics by stream -------------------------------------------------------------------------------------------------


def mean(ids: list[int]) -> float:
    return float(row_loss(torch.tensor(ids)).mean()) if ids else math.nan


@pytest.mark.parametrize(('name', 'ranks', 'first'), [('whole', 1, 0), ('rest', 2, 12)])
def test_each_batch_has_a_loss_of_each_stream(runs: dict[str, MixLeg], name: str, ranks: int, first: int) -> None:
    leg = runs[name]
    for stream in 'ab':
        # Composer logs the metrics of a batch once more at the end of an epoch.
        values = dict(logged(leg, f'metrics/train/loss/{stream}'))
        expected = [mean([i for i in ids if (i < 60) == (stream == 'a')]) for ids in batches(leg, ranks)]
        assert [values[k] for k in range(first, BATCHES)] == pytest.approx(expected, rel=1e-6, nan_ok=True)
    if name == 'whole':
        assert math.isnan(dict(logged(leg, 'metrics/train/loss/b'))[0])  # the schedule has none of it yet


@pytest.mark.parametrize('name', ['whole', 'rest'])
def test_an_evaluation_counts_each_sample_once(runs: dict[str, MixLeg], name: str) -> None:
    """Of 101 samples on two ranks, one is repeated to fill up."""
    for stream, ids in (('a', range(60)), ('b', range(60, 101))):
        right = sum((i % 3 == 0) == (i % 2 == 0) for i in ids) / len(ids)
        for metric, expected in (('loss', mean(list(ids))), ('accuracy', right)):
            values = [value for _, value in logged(runs[name], f'metrics/both/{metric}/{stream}')]
            assert values == pytest.approx([expected] * len(values), rel=1e-6)
            assert values


def test_a_stream_without_a_name_is_refused() -> None:
    metrics = stream_metrics(PerStream(PerStreamMean(['x']), ['a', 'b']))
    with pytest.raises(ConfigError, match=r"There are 2 names of streams, \['a', 'b'\], but rows of stream 2"):
        metrics['a'].update(torch.ones(2), streams=torch.tensor([0, 2]))


def test_rows_of_bad_samples_are_left_out() -> None:
    metrics = stream_metrics(PerStreamMean(['a', 'b']))
    for metric in metrics.values():
        bad = torch.tensor([True, False, False])
        metric.update(torch.tensor([5.0, 1.0, 3.0]), streams=torch.tensor([0, 0, 1]), is_bad_sample=bad)
    assert [float(metric.compute()) for metric in metrics.values()] == [1, 3]


# -- a curriculum ------------------------------------------------------------------------------------------------------


def test_each_step_has_the_scheduled_shares(config: str, runs: dict[str, MixLeg]) -> None:
    found = batches(runs['whole'])
    assert found == planned(config)
    had = 0
    for k, ids in enumerate(found):
        had += sum(i >= 60 for i in ids)
        # The integral of b's share until the end of the batch, over its 8 samples.
        end = min(8 * (k + 1), 160) - 32
        ramp = 0 if end <= 0 else 0.25 * end + 0.5 * end * end / (2 * 128)
        promised = ramp + 0.75 * max(8 * (k + 1) - 160, 0)
        assert abs(had - promised) <= 2, k
    assert [sum(i >= 60 for i in ids) for ids in found][:4] == [0] * 4
    assert [sum(i >= 60 for i in ids) for ids in found][20:] == [6] * 4


def test_a_curriculum_continues_in_mid_ramp_on_other_ranks(
    config: str, runs: dict[str, MixLeg], tmp_path: Path
) -> None:
    whole, rest = batches(runs['whole']), runs['rest']
    assert batches(rest, 2) == whole[12:]
    again = MixLeg('again', str(tmp_path), config, load=str(rest.checkpoints / 'ba16.pt'))
    run(again)
    assert batches(again) == whole[16:]


def test_another_schedule_takes_over_at_a_resume(config: str, runs: dict[str, MixLeg], tmp_path: Path) -> None:
    """Streams continue where they are: none has a sample again before it had all of them."""
    checkpoint = runs['whole'].checkpoints / 'ba8.pt'
    other = 'train.schedule=[{at: 0, proportions: {a: 1, b: 1}}, {at: 128, proportions: {b: 1}}]'
    refused = MixLeg('refused', str(tmp_path), config, [other], load=str(checkpoint))
    with pytest.raises(ValueError, match='schedule'):
        run(refused)
    leg = MixLeg('other', str(tmp_path), config, [other, 'train.on_mixture_change=continue'], load=str(checkpoint))
    run(leg)
    found = batches(leg)
    before = loader_of(config)
    state = before.dataset.resume_state(0, 64, 8).to_dict()
    assert found == planned(config, *leg.overrides, state=state)
    shares = [sum(i >= 60 for i in ids) for ids in found]
    assert shares == [4] * 8 + [8] * 8
    of_b: list[int] = []
    for ids in batches(runs['whole'])[:8] + found:
        of_b += [i for i in ids if i >= 60]
        assert len(of_b) > 41 or len(set(of_b)) == len(of_b)
    assert set(of_b) == set(range(60, 101))


# -- loss spikes -------------------------------------------------------------------------------------------------------


def report(leg: MixLeg, batch: int) -> dict[str, Any]:
    return json.loads((leg.checkpoints / f'loss-spike-batch{batch}.json').read_text())


def test_a_spike_is_explained_and_skipped(
    config: str, poison: list[int], runs: dict[str, MixLeg], tmp_path: Path
) -> None:
    spiked = runs['spiked']
    assert len(batches(spiked)) == 10  # it stopped
    (spike,) = logged(spiked, 'spikes/loss')
    assert spike == [10, pytest.approx(100 + mean(batches(spiked)[9]), rel=1e-3)]
    found = report(spiked, 9)
    assert found['skip'] == [[72, 88]]
    assert [[row['id'] for row in batch['rows']] for batch in found['batches']] == [poison[:8], poison[8:]]
    assert 'resume from a checkpoint of at most 9 batches' in found['summary'][-1]
    # The checkpoint before it, and the configuration with what was written.
    resumed = tmp_path / 'resumed.yaml'
    resumed.write_text(f'defaults: [{config}, {spiked.checkpoints}/loss-spike-batch9.yaml]\n')
    leg = MixLeg('resumed', str(tmp_path), str(resumed), ONCE, '1ep', load=str(spiked.checkpoints / 'ba8.pt'))
    leg.poison, leg.spikes, leg.save = poison, SPIKES, '1ep'
    run(leg)
    trained_on = [i for ids in batches(spiked)[:8] + batches(leg) for i in ids]
    assert sorted(trained_on + poison) == list(range(101))
    assert not list(leg.checkpoints.glob('loss-spike*'))


def test_the_shell_says_the_same(config: str, runs: dict[str, MixLeg], tmp_path: Path, capsys: Any) -> None:
    spiked, out = runs['spiked'], tmp_path / 'out.yaml'
    asked = ['skip', config, *ONCE, '--step', '9', '--after', '1']
    for state in ([], ['--state', str(spiked.checkpoints / 'ba8.pt')]):
        assert main([*asked, *state, '--json']) == 0
        assert json.loads(capsys.readouterr().out)['batches'] == report(spiked, 9)['batches']
    assert main([*asked, '--write', str(out)]) == 0
    assert load_config(out).train.skip == ((72, 88),)
    assert (
        main(['explain', config, *ONCE, '--state', str(spiked.checkpoints / 'ba8.pt'), '--batch', '1', '--json']) == 0
    )
    explained = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert explained['rows'] == report(spiked, 9)['batches'][0]['rows']


def test_a_spike_of_another_rank_is_found(poison: list[int], runs: dict[str, MixLeg]) -> None:
    quiet = runs['quiet']
    assert poison[-1] not in [i for line in lines(quiet, 0) for i in line['ids']]
    (spike,) = logged(quiet, 'spikes/loss')
    assert spike[0] == 11
    found = report(quiet, 10)
    assert [row['rank'] for row in found['batches'][0]['rows'] if row['id'] == poison[-1]] == [1]
    assert found['loss'] == pytest.approx(100 / 8 + mean(batches(quiet, 2)[10]), rel=1e-5)


def test_wrong_use_is_refused_before_the_first_step(config: str, tmp_path: Path) -> None:
    model = Linear()
    spec = streaming_data_spec(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options: dict[str, Any] = {'max_duration': '1ep', 'device': 'cpu', 'progress_bar': False, 'optimizers': optimizer}
    with pytest.raises(ConfigError, match='this trainer saves none: give it `folder`'):
        Trainer(model=model, train_dataloader=spec, callbacks=[LossSpikes()], **options).fit()
    plain = DataLoader([{'id': 1, 'x': 1.0}])
    with pytest.raises(ConfigError, match='the train loader is DataLoader'):
        Trainer(model=model, train_dataloader=plain, callbacks=[LossSpikes(folder=str(tmp_path))], **options).fit()
