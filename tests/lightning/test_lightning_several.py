"""Several training loaders, a batch of each in every step: what an epoch is, and how it is resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import LightningModule, Trainer

from headrace import MDSWriter, StreamingDataset
from headrace.errors import ConfigError, ResumeError
from headrace.lightning import StreamingDataModule
from tests.support import support_file
from tests.support.trainers.lightning_several import Crash, Several, train
from tests.support.trainers.ranks import run_ranks

pytestmark = [pytest.mark.filterwarnings('ignore')]

SIZES = {'short': 24, 'long': 52}  # 3 and 7 batches of 8
MODES = ['max_size_cycle', 'max_size', 'min_size']
Steps = list[tuple[int, int, dict[str, list[int] | None]]]


@pytest.fixture(scope='module')
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp('several')
    for first, (name, size) in enumerate(SIZES.items()):
        with MDSWriter(out=str(root / name), columns={'id': 'int'}, size_limit=300) as writer:
            for number in range(size):
                writer.write({'id': 1000 * first + number})
    return {name: str(root / name) for name in SIZES}


def batches(run: Several, name: str, epoch: int) -> list[list[int]]:
    """The ids of the plan, without a trainer."""
    data = StreamingDataset(local=run.sources[name], shuffle=True, skip=run.skips.get(name, ()), **run.dataset)
    size = run.sizes.get(name, run.batch_size) * run.devices
    plan = data.plan(epoch=epoch, global_batch_size=size)
    first = 1000 * list(SIZES).index(name)
    return [(first + plan.ids(k)).tolist() for k in range(plan.num_batches)]


def expected(run: Several, epochs: int = 2, limit: int | None = None) -> Steps:
    """The obvious way: loaders that begin an epoch when they are asked for more, in a loop."""
    steps: Steps = []
    begun = dict.fromkeys(run.sources, 0)

    def next_epoch(name: str) -> list[list[int]]:
        while not (found := batches(run, name, begun[name])):
            begun[name] += 1  # skipped as a whole
        return found

    def begin(name: str) -> Iterator[list[int]]:
        found = next_epoch(name)
        begun[name] += 1
        return iter(found)

    for epoch in range(epochs):
        lengths = [min(len(next_epoch(name)), limit or 1 << 60) for name in run.sources]
        going = {name: begin(name) for name in run.sources}
        for step in range(min(lengths) if run.mode == 'min_size' else max(lengths)):
            rows: dict[str, list[int] | None] = {}
            for name in run.sources:
                rows[name] = next(going[name], None)
                if rows[name] is None and run.mode == 'max_size_cycle':
                    going[name] = begin(name)
                    rows[name] = next(going[name])
            steps.append((epoch, step, rows))
    return steps


def run_of(sources: dict[str, str], folder: Path, **fields: Any) -> Several:
    return Several(**{'name': 'whole', 'out': str(folder), 'sources': sources, **fields})


@pytest.mark.parametrize(
    ('sizes', 'mode'),
    [
        pytest.param({}, 'max_size_cycle', id='one size-max_size_cycle'),
        pytest.param({}, 'max_size', id='one size-max_size', marks=pytest.mark.slow),
        pytest.param({}, 'min_size', id='one size-min_size', marks=pytest.mark.slow),
        pytest.param({'short': 2}, 'max_size_cycle', id='own size-max_size_cycle', marks=pytest.mark.slow),
        pytest.param({'short': 2}, 'max_size', id='own size-max_size'),
        pytest.param({'short': 2}, 'min_size', id='own size-min_size'),
    ],
)
def test_every_step_is_a_place_to_continue_from(sources, tmp_path, mode, sizes):
    run = run_of(sources, tmp_path, mode=mode, sizes=sizes)
    steps = train(run).steps
    assert steps == expected(run)
    # Every step where loaders of different length go on for longest; else each third.
    for at in range(1, len(steps), 1 if mode == 'max_size_cycle' and not sizes else 3):
        again = dataclasses.replace(run, name=f'from{at}', checkpoint=run.saved(at), workers=at % 7 == 3)
        assert train(again).steps == steps[at:], at
    # A run that was resumed leaves states to resume from, too.
    at = len(steps) * 2 // 3
    half = dataclasses.replace(run, name='half', checkpoint=run.saved(at // 2))
    train(half)
    assert train(dataclasses.replace(run, name='third', checkpoint=half.saved(at))).steps == steps[at:]


@pytest.mark.parametrize('mode', MODES)
def test_a_failing_step_comes_again(sources, tmp_path, mode):
    run = run_of(sources, tmp_path, mode=mode)
    steps = expected(run)
    with pytest.raises(Crash):
        train(dataclasses.replace(run, name='first', crash_at=4))
    path = tmp_path / 'first' / 'exception.ckpt'
    assert train(dataclasses.replace(run, name='second', checkpoint=str(path))).steps == steps[4:]


@pytest.mark.parametrize('mode', MODES)
def test_a_limit_ends_an_epoch_of_all(sources, tmp_path, mode):
    run = run_of(sources, tmp_path, mode=mode, trainer={'limit_train_batches': 5})
    steps = train(run).steps
    assert steps == expected(run, limit=5)
    for at in (2, 4, 5, 6):
        if at < len(steps):
            assert train(dataclasses.replace(run, name=f'from{at}', checkpoint=run.saved(at))).steps == steps[at:]


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
    'skips',
    [
        {'short': [[24, 48]]},  # the whole of an epoch that begins in the middle of the other's
        {'long': [[0, 40]]},  # an epoch that is shorter than the short one's, and later ones that are longer
        {'short': [[10, 30], [60, 96]], 'long': [[52, 110]]},
    ],
    ids=['an epoch', 'a beginning', 'both'],
)
def test_every_loader_may_leave_parts_out(sources, tmp_path, mode, skips):
    run = run_of(sources, tmp_path, mode=mode, skips=skips, trainer={'max_epochs': 3})
    steps = train(run).steps
    assert steps == expected(run, epochs=3)
    for at in range(1, len(steps), 5):
        again = dataclasses.replace(run, name=f'from{at}', checkpoint=run.saved(at))
        assert train(again).steps == steps[at:], at


def test_a_loader_without_a_batch_is_refused(sources, tmp_path):
    run = run_of(sources, tmp_path, batch_size=32, dataset={'remainder': 'drop'})
    with pytest.raises(ConfigError, match='train short has no batch in an epoch: its 24 samples'):
        train(run)


def test_skipped_parts_end_an_epoch(sources, tmp_path):
    run = run_of(sources, tmp_path, dataset={'skip': [[0, 16]]})
    steps = train(run).steps
    lengths = [sum(epoch == number for epoch, _, _ in steps) for number in (0, 1)]
    assert lengths == [5, 7]
    assert [step for _, step, _ in steps] == [*range(5), *range(7)]
    for at in (1, 4, 5, 8):
        assert train(dataclasses.replace(run, name=f'from{at}', checkpoint=run.saved(at))).steps == steps[at:]


@pytest.mark.parametrize('mode', MODES)
def test_another_batch_size_continues_in_every_loader(sources, tmp_path, mode):
    run = run_of(sources, tmp_path, mode=mode)
    train(run)
    at = 2
    again = dataclasses.replace(run, name='smaller', checkpoint=run.saved(at), batch_size=4)
    found = train(again).steps
    rest = {}
    for name in sources:
        data = StreamingDataset(local=sources[name], shuffle=True)
        ids = [
            1000 * list(SIZES).index(name) + i
            for epoch in range(6)
            for i in data.order(epoch).at(np.arange(len(data))).tolist()
        ]
        rest[name] = ids[2 * 8 :]
    # Of the epoch under way, the loader that leads has what was left of it, and the others as much as fits beside.
    first = [rows for epoch, _, rows in found if epoch == 0]
    leader = 'short' if mode == 'min_size' else 'long'
    seen = {name: [i for rows in first for i in rows[name] or []] for name in sources}
    assert seen[leader] == rest[leader][: SIZES[leader] - 16]
    for name in sources:
        assert seen[name] == rest[name][: len(seen[name])]
    if mode == 'max_size':
        assert seen['short'] == rest['short'][:8]
    assert found[len(first)][:2] == (1, 0)


def test_ranks_and_workers_may_change_at_a_resume(sources, tmp_path):
    run = run_of(sources, tmp_path, devices=2, workers=1, batch_size=4)
    path = tmp_path / 'run.json'
    path.write_text(json.dumps(dataclasses.asdict(run)))
    run_ranks('lightning', 2, support_file('trainers/lightning_several.py'), path, folder=tmp_path)
    ranks = [json.loads(Path(tmp_path, f'whole.rank{rank}.json').read_text()) for rank in range(2)]
    one = dataclasses.replace(run, name='one', devices=1, workers=0, batch_size=8)
    want = expected(one)
    joined = [
        (epoch, step, {name: sorted(rows[name] + other[name]) for name in rows})
        for (epoch, step, rows), (_, _, other) in zip(*ranks, strict=True)
    ]
    assert joined == [(e, s, {name: sorted(ids or []) for name, ids in rows.items()}) for e, s, rows in want]
    assert train(dataclasses.replace(one, checkpoint=run.saved(9))).steps == want[9:]


def test_other_loaders_are_refused_by_name(sources, tmp_path):
    run = run_of(sources, tmp_path, trainer={'max_steps': 2})
    train(run)
    others = {'short': sources['short'], 'third': sources['long']}
    with pytest.raises(ResumeError, match=r'training loaders short, long .* training loaders short, third'):
        train(dataclasses.replace(run, sources=others, checkpoint=run.saved(2)))
    with pytest.raises(ResumeError, match=r"train_mode 'max_size_cycle'.*train_mode 'min_size'"):
        train(dataclasses.replace(run, mode='min_size', checkpoint=run.saved(2)))
    with pytest.raises(ResumeError, match=r'training loaders short, long .*one training loader'):
        train(dataclasses.replace(run, sources={'short': sources['short']}, checkpoint=run.saved(2)))


def test_they_may_come_in_a_list_and_be_of_yaml(sources):
    class Model(LightningModule):
        batches: list[Any]

        def training_step(self, batch, batch_idx):
            self.batches.append(batch)

        def configure_optimizers(self): ...

    folders = list(sources.values())
    listed = [{'local': folder, 'batch_size': size} for folder, size in zip(folders, (2, 4), strict=True)]
    trainer = Trainer(accelerator='cpu', max_steps=1, logger=False, enable_checkpointing=False)
    model = Model()
    model.batches = []
    trainer.fit(model, datamodule=StreamingDataModule(train=listed, train_mode='min_size'))
    assert [len(rows['id']) for rows in model.batches[0]] == [2, 4]


def test_the_file_beside_a_checkpoint_tells_of_all(sources, tmp_path, capsys):
    from headrace.cli import main

    run = run_of(sources, tmp_path, trainer={'max_steps': 4})
    train(run)
    beside = Path(run.saved(4)).with_suffix('.headrace.json')
    summary = json.loads(beside.read_text())['summary']
    assert any('short: sample 8 of 24, epoch 1' in line for line in summary)
    assert any('long: sample 32 of 52, epoch 0' in line for line in summary)
    config = tmp_path / 'mix.yaml'
    config.write_text(f'device_batch_size: 8\ntrain: {{local: {sources["long"]}, shuffle: true}}\n')
    assert main(['explain', str(config), '--batch', '0', '--state', str(beside)]) != 0
    assert 'holds several positions: state.loaders.short.position' in capsys.readouterr().err
