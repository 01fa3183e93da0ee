"""One rank with the options of Composer that touch the position, in this process."""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composer.utils import checkpoint

from composer import Callback, Evaluator, Trainer
from headrace import MDSWriter
from headrace.composer import DataStatistics, StreamingPosition, streaming_data_spec
from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError, ResumeError, TopologyError
from headrace.packing import PackedDataset, Packing
from tests.support.trainers.composer_legs import Leg, Linear, Recorder, run, train_dataset, train_spec
from tests.support.trainers.composer_runs import lines, make_data, sequence, trained

pytestmark = [
    pytest.mark.composer,
    pytest.mark.filterwarnings('ignore'),  # Composer's and its dependencies' own
]


@pytest.fixture
def both_epochs(data: str) -> list[list[int]]:
    return sequence(data, 0) + sequence(data, 1)


@pytest.fixture(scope='module')
def checkpoints(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run without the callback, which therefore holds no random state."""
    out = tmp_path_factory.mktemp('checkpoints')
    run(Leg('bare', data, str(out), follow=False, save=True))
    return out


class Seen(Callback):
    """The ids of each batch that is trained, sorted."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def after_dataloader(self, state: Any, logger: Any) -> None:
        self.batches.append(sorted(state.batch['id'].tolist()))


def batches(leg: Leg) -> list[list[int]]:
    return list(trained(leg, 1).values())


def trainer_of(train: Any, model: Linear | None = None, callbacks: Sequence[Callback] = (), **options: Any) -> Trainer:
    model = model or Linear()
    return Trainer(
        model=model,
        train_dataloader=train,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        callbacks=[StreamingPosition(), *callbacks],
        device='cpu',
        progress_bar=False,
        **{'max_duration': '1ep', **options},
    )


@pytest.mark.parametrize(('kind', 'behind'), [('mid', 5), ('last', 12), ('boundary', 12), ('second', 17)])
@pytest.mark.parametrize('follow', [False, True], ids=['without', 'with'])
def test_checkpoints_of_a_run_without_the_callback(
    checkpoints: Path, data: str, tmp_path: Path, both_epochs: list[list[int]], kind: str, behind: int, follow: bool
) -> None:
    leg = Leg('rest', data, str(tmp_path), follow=follow, load=str(checkpoints / f'bare-{kind}.pt'))
    run(leg)
    assert trained(leg, 1) == dict(enumerate(both_epochs[behind:], behind))


@pytest.mark.parametrize(
    ('kind', 'behind', 'workers'),
    [('mid', 5, 0), ('mid', 5, 2), ('last', 12, 0), ('boundary', 12, 0), ('boundary', 12, 2)],
)
def test_a_plain_dataloader(
    data: str, tmp_path: Path, both_epochs: list[list[int]], kind: str, behind: int, workers: int
) -> None:
    first = Leg('first', data, str(tmp_path), plain=True, workers=workers, save=True)
    rest = Leg('rest', data, str(tmp_path), plain=True, workers=workers, load=f'{tmp_path}/first-{kind}.pt')
    run(first)
    run(rest)
    assert batches(first) == both_epochs
    assert batches(rest) == both_epochs[behind:]


@pytest.mark.parametrize(('duration', 'expected'), [('5ba', 10), ('1ep', 24)])
def test_a_second_fit_continues_where_the_first_ended(
    data: str, tmp_path: Path, both_epochs: list[list[int]], duration: str, expected: int
) -> None:
    leg = Leg('twice', data, str(tmp_path), duration=duration, fits=2)
    run(leg)
    assert batches(leg) == both_epochs[:expected]


@pytest.mark.parametrize(('durations', 'expected'), [(['1ep', '2ep'], [1, 3]), (['3ba', '2ba'], [None, None])])
def test_the_loader_knows_how_many_epochs_there_are(
    data: str, durations: list[str], expected: list[int | None]
) -> None:
    """So that it fetches what the next one begins with, if there is one. Batches do not say so."""
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=8), batch_size=8)
    trainer = trainer_of(streaming_data_spec(loader), max_duration=durations[0])
    known = []
    for duration in (None, durations[1]):
        trainer.fit(duration=duration)
        known.append(loader.max_epochs)
    assert known == expected


@pytest.mark.parametrize(('kind', 'behind'), [('mid', 5), ('eighth', 8), ('boundary', 8), ('last', 12)])
def test_a_subset_of_the_epochs_batches(data: str, tmp_path: Path, kind: str, behind: int) -> None:
    first = Leg('first', data, str(tmp_path), subset=8, save=True)
    rest = Leg('rest', data, str(tmp_path), subset=8, load=f'{tmp_path}/first-{kind}.pt')
    run(first)
    run(rest)
    short = sequence(data, 0)[:8] + sequence(data, 1)[:8]
    assert batches(first) == short
    assert batches(rest) == short[behind:]
    assert {line['len'] for line in lines(rest)} == {8}


@pytest.mark.parametrize(('kind', 'behind'), [('mid', 5), ('last', 12), ('boundary', 12), ('second', 17)])
def test_an_epoch_in_an_order_of_mosaicml_is_as_long_as_there(
    data: str, tmp_path: Path, kind: str, behind: int
) -> None:
    """64 canonical nodes get 2 samples each, so there are 128 in 16 batches; the length of its loader is 12."""
    order = {'dataset': {'shuffle_algo': 'py1s'}}
    first = Leg('first', data, str(tmp_path), save=True, **order)
    rest = Leg('rest', data, str(tmp_path), load=f'{tmp_path}/first-{kind}.pt', **order)
    run(first)
    run(rest)
    assert len(train_spec(first).loader) == 16
    dataset = train_dataset(first, 1)
    plans = [dataset.plan(epoch=epoch, start=0) for epoch in (0, 1)]
    expected = [sorted(plan.ids(k).tolist()) for plan in plans for k in range(12)]
    assert batches(first) == expected
    assert batches(rest) == expected[behind:]


def test_the_rest_of_an_epoch_in_larger_batches_twice(data: str, tmp_path: Path) -> None:
    """5 batches of 8, 2 of 24, then again batches of 4."""
    run(Leg('a', data, str(tmp_path), save=True, duration='5ba'))
    longer = Leg('b', data, str(tmp_path), global_batch=24, load=f'{tmp_path}/a-mid.pt', duration='7ba')
    trainer = run(longer)
    trainer.save_checkpoint(f'{tmp_path}/b.pt')
    shorter = Leg('c', data, str(tmp_path), global_batch=4, load=f'{tmp_path}/b.pt', duration='1ep')
    run(shorter)
    assert batches(longer) == sequence(data, 0, 40, 24)[:2]
    assert batches(shorter) == sequence(data, 0, 88, 4)
    assert [line['batch_in_epoch'] for line in lines(shorter)] == [22, 23]


def test_evaluation_takes_the_same_batches_each_time_and_moves_nothing(
    data: str, uneven: str, tmp_path: Path, both_epochs: list[list[int]]
) -> None:
    leg = Leg('evaluated', data, str(tmp_path), workers=1, evaluate=uneven, save=True)
    run(leg)
    rest = Leg('rest', data, str(tmp_path), evaluate=uneven, load=f'{tmp_path}/evaluated-mid.pt')
    run(rest)
    assert batches(leg) == both_epochs
    assert batches(rest) == both_epochs[5:]
    evaluations = [line['evaluated'] for one in (leg, rest) for line in lines(one, key='evaluated')]
    assert len(evaluations) == 8
    assert all(seen == evaluations[0] for seen in evaluations)
    assert sorted(evaluations[0]) == list(range(101))


def test_microbatches_change_nothing(data: str, tmp_path: Path, both_epochs: list[list[int]]) -> None:
    leg = Leg('micro', data, str(tmp_path), microbatch=3)
    run(leg)
    assert batches(leg) == both_epochs
    assert [line['sample_in_epoch'] for line in lines(leg)] == [*range(0, 96, 8)] * 2


class Tight(Linear):
    """Runs out of memory where more than two rows at once come in, and says so as CUDA does."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[list[int]] = []
        self.misses = 0

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        if len(batch['id']) > 2 or ((batch['id'] == 17).any() and self.misses < 3):
            # Once more, for one sample, when the size has long been found.
            self.misses += 1
            raise RuntimeError('CUDA out of memory.')
        self.trained.append(batch['id'].tolist())
        return super().loss(outputs, batch)


@pytest.mark.parametrize('workers', [0, 1])
def test_a_batch_that_does_not_fit_is_split_again_and_moves_nothing(
    data: str, tmp_path: Path, both_epochs: list[list[int]], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """`device_train_microbatch_size='auto'`, which Composer has for GPUs only; all else is its own."""
    monkeypatch.setattr('composer.trainer.trainer._is_auto_microbatching', lambda size, device: size == 'auto')
    leg = Leg('auto', data, str(tmp_path), workers=workers)
    spec, model, sizes = train_spec(leg), Tight(), []
    split = spec.split_batch
    spec.split_batch = lambda batch, size: sizes.append(size) or split(batch, size)
    trainer = trainer_of(spec, model, [Recorder(leg)], device_train_microbatch_size='auto', max_duration='5ba')
    trainer.fit()
    trainer.save_checkpoint(f'{tmp_path}/auto.pt')
    trainer.fit(duration='7ba')
    # A batch is split into eights, fours, twos; and, from the one with sample 17 on, into ones.
    assert sizes[:3] == [8, 4, 2]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert len(sizes) == 12 + 3
    assert batches(leg) == both_epochs[:12]
    assert [line['sample_in_epoch'] for line in lines(leg)] == [*range(0, 96, 8)]
    # After a lack of memory in mid-batch, the batch is computed again, and counts once.
    assert set(itertools.chain(*model.trained)) == set(range(96))

    monkeypatch.undo()
    rest = Leg('rest', data, str(tmp_path), load=f'{tmp_path}/auto.pt')
    run(rest)
    assert batches(rest) == both_epochs[5:]


def test_a_loader_that_is_given_to_fit(checkpoints: Path, data: str, both_epochs: list[list[int]]) -> None:
    leg = Leg('late', data, '')
    seen = Seen()
    trainer = trainer_of(None, callbacks=[seen], load_path=str(checkpoints / 'bare-mid.pt'))
    trainer.fit(train_dataloader=train_spec(leg), duration='7ba')
    assert seen.batches == both_epochs[5:12]


@pytest.mark.parametrize(('second', 'spin'), [('9ba', True), ('9ba', False), ('2ba', True)])
def test_another_loader_in_a_later_fit_begins_at_the_trainers_time(
    data: str, tmp_path: Path, both_epochs: list[list[int]], second: str, spin: bool
) -> None:
    """After two fits, at an epoch's end and within an epoch. So its checkpoints continue there, too."""
    seen, path = Seen(), f'{tmp_path}/other.pt'
    trainer = trainer_of(train_spec(Leg('one', data, '')), callbacks=[seen], max_duration='3ba')
    trainer.fit()
    trainer.fit(duration=second)
    trainer.fit(train_dataloader=train_spec(Leg('other', data, '')), duration='4ba', spin_dataloaders=spin)
    trainer.save_checkpoint(path)
    trainer.close()
    trainer_of(train_spec(Leg('rest', data, '')), callbacks=[seen], load_path=path, max_duration='2ep').fit()
    assert seen.batches == both_epochs


def test_a_loader_that_was_looked_at_begins_at_the_beginning(data: str, both_epochs: list[list[int]]) -> None:
    spec = train_spec(Leg('peek', data, ''))
    next(iter(spec.loader))
    seen = Seen()
    trainer_of(spec, callbacks=[seen]).fit()
    assert seen.batches == both_epochs[:12]


def test_a_missing_callback_is_warned_of_once(data: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        run(Leg('bare', data, str(tmp_path), follow=False))
        run(Leg('followed', data, str(tmp_path)))
    assert sum('StreamingPosition' in str(one.message) for one in caught) == 1


@pytest.mark.parametrize('is_wrong', [False, True])
def test_a_count_that_is_not_the_loaders_is_warned_of(data: str, is_wrong: bool) -> None:
    count = (lambda batch: 3) if is_wrong else None
    spec = streaming_data_spec(local=data, batch_size=8, get_num_samples_in_batch=count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        trainer_of(spec).fit()
    messages = [str(one.message) for one in caught if 'handed out' in str(one.message)]
    assert len(messages) == is_wrong
    assert all('counts 3 samples of this epoch, but the loader has handed out 8' in message for message in messages)


def test_a_checkpoint_of_other_data_is_refused_when_it_is_loaded(checkpoints: Path, tmp_path: Path) -> None:
    other = make_data(tmp_path / 'other', 40)
    with pytest.raises(ResumeError, match='epoch_size: 96 in the checkpoint, 40 now'):
        trainer_of(train_spec(Leg('other', other, '')), load_path=str(checkpoints / 'bare-mid.pt'))


def test_a_checkpoint_of_another_loader_is_refused_unless_its_position_is_left_out(data: str, tmp_path: Path) -> None:
    other = torch.utils.data.DataLoader([{'id': n, 'x': 0.5} for n in range(96)], batch_size=8)
    trainer = trainer_of(other)
    trainer.fit(duration='5ba')
    trainer.save_checkpoint(f'{tmp_path}/other.pt')
    trainer.close()
    load = {'load_path': f'{tmp_path}/other.pt', 'load_ignore_keys': ['state/callbacks/*']}
    with pytest.raises(ResumeError, match='no position in the data'):
        trainer_of(train_spec(Leg('ours', data, '')), **load)
    load['load_ignore_keys'] += ['state/dataset_state']
    for spin, expected in ((True, sequence(data, 0)[5:7]), (False, sequence(data, 0)[:2])):
        seen = Seen()
        trainer = trainer_of(train_spec(Leg('ours', data, '')), callbacks=[seen], spin_dataloaders=spin, **load)
        trainer.fit(duration='2ba')
        assert seen.batches == expected


@pytest.mark.parametrize(('kind', 'follow'), [('ours', True), ('plain', True), ('ours', False)])
def test_a_dataset_for_training_and_evaluation_is_refused(data: str, kind: str, follow: bool) -> None:
    dataset = StreamingDataset(local=data, batch_size=8)
    evaluation = torch.utils.data.DataLoader(dataset, batch_size=8)
    if kind == 'ours':
        evaluation = streaming_data_spec(StreamingDataLoader(dataset), 'eval')
    trainer = trainer_of(streaming_data_spec(dataset), eval_dataloader=evaluation)
    if not follow:
        trainer.state.callbacks.clear()
    with pytest.raises(ConfigError, match='share one StreamingDataset' if follow else 'two loaders read the same'):
        trainer.fit()


def test_a_dataset_of_a_training_in_another_loader_continues_or_is_refused(
    data: str, both_epochs: list[list[int]]
) -> None:
    seen, dataset = Seen(), StreamingDataset(local=data, shuffle=True, batch_size=8, shuffle_seed=7)
    specs = [streaming_data_spec(dataset), streaming_data_spec(dataset, batch_size=8)]
    trainer = trainer_of(specs[0], callbacks=[seen], max_duration='3ba')
    trainer.fit()
    trainer.eval(torch.utils.data.DataLoader(dataset, batch_size=8))
    trainer.fit(duration='2ba')
    trainer.fit(train_dataloader=specs[1], duration='9ba')
    assert seen.batches == both_epochs[:14]
    with pytest.raises(ConfigError, match='two loaders read the same'):
        trainer.fit(train_dataloader=specs[0], duration='2ba')
    with pytest.raises(ConfigError, match='two loaders read the same'):
        trainer.eval(streaming_data_spec(StreamingDataLoader(dataset), 'eval'))


def test_evaluators_may_share_a_dataset(data: str, both_epochs: list[list[int]]) -> None:
    class Evaluated(Callback):
        def eval_end(self, state: Any, logger: Any) -> None:
            found.append(model.seen)
            model.seen = []

    def evaluator(size: int, batches: int) -> Evaluator:
        loader = StreamingDataLoader(dataset, size)
        return Evaluator(
            label=str(size),
            dataloader=streaming_data_spec(loader, 'eval'),
            subset_num_batches=batches,
            eval_interval='6ba',
        )

    found: list[list[int]] = []
    seen, model = Seen(), Linear()
    dataset = StreamingDataset(local=data, shuffle=True, shuffle_seed=7)
    order = StreamingDataLoader(dataset, 8).plan(0)
    ids = [number for k in range(12) for number in order.ids(k).tolist()]
    evaluators = [evaluator(8, 5), evaluator(12, -1)]
    trainer_of(
        train_spec(Leg('one', data, '')), model, [Evaluated(), seen], eval_dataloader=evaluators, max_duration='2ep'
    ).fit()
    assert found == [ids[:40], ids] * 4
    assert seen.batches == both_epochs


@pytest.mark.parametrize('statistics', [False, True])
def test_a_training_says_where_its_data_continue_and_how_long_it_waited(
    checkpoints: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], statistics: bool
) -> None:
    path = f'{tmp_path}/saved.pt'
    trainer = trainer_of(train_spec(Leg('first', data, '')), max_duration='15ba')
    trainer.fit()
    trainer.save_checkpoint(path)
    trainer.close()
    printed = capsys.readouterr().err
    assert 'the data continue' not in printed
    assert len(re.findall('headrace: waited [0-9.]+ % for data\n', printed)) == 1
    saved = torch.load(path, weights_only=False)
    (callback,) = [state for name, state in saved['state']['callbacks'].items() if 'StreamingPosition' in name]
    file = io.BytesIO()
    torch.save(torch.load(io.BytesIO(callback['rng']), weights_only=True) * 8, file)
    callback['rng'] = file.getvalue()
    torch.save(saved, path)
    trainer = trainer_of(
        train_spec(Leg('rest', data, '')),
        callbacks=[DataStatistics()] if statistics else [],
        load_path=path,
        max_duration='2ep',
    )
    trainer.fit()
    trainer.fit(duration='2ba')
    printed = capsys.readouterr().err
    assert printed.count('the data continue') == 1
    assert 'headrace: the data continue at epoch 1, sample 24 (checkpoint of 8 ranks, now 1)\n' in printed
    assert printed.count('headrace: waited') == 2
    assert len(re.findall('headrace: waited [0-9.]+ % for data\n', printed)) == (0 if statistics else 2)
    # Other data that replace the checkpoint's get nothing of it.
    mid = {'load_path': str(checkpoints / 'bare-mid.pt'), 'max_duration': '2ep'}
    other = torch.utils.data.DataLoader([{'other': row} for row in range(60)], batch_size=5)
    place = Place()
    trainer = trainer_of(train_spec(Leg('rest', data, '')), AnyModel(), [place], **mid)
    trainer.fit(train_dataloader=other)
    assert [line[:3] for line in place.seen] == [f'0.{n}'[:3] for n in range(5, 12)] + [f'1.{n}'[:3] for n in range(12)]
    assert 'headrace' not in capsys.readouterr().err


def test_a_loader_for_another_rank_is_refused(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = streaming_data_spec(local=data, batch_size=8)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    monkeypatch.setenv('WORLD_SIZE', '2')
    monkeypatch.setenv('RANK', '1')
    with pytest.raises(TopologyError, match='rank 1 of 2, but it reads for rank 0 of 1'):
        streaming_data_spec(spec.loader)


class AnyModel(Linear):
    """Of any data: its loss does not look at them."""

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layer(torch.ones(1, 1))


class Place(Callback):
    """Remembers each trained batch as a text, and saves a checkpoint after the second one."""

    def __init__(self, path: Path | None = None) -> None:
        self.seen: list[str] = []
        self._path = path

    def after_dataloader(self, state: Any, logger: Any) -> None:
        time = state.timestamp
        self.seen.append(f'{int(time.epoch)}.{int(time.batch_in_epoch)}: {state.batch}')

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        if self._path is not None and len(self.seen) == 2:
            checkpoint.save_checkpoint(state, str(self._path))


def kinds_of_data(data: str, uneven: str, tokens: str) -> dict[str, Callable[[], Any]]:
    """Training data for a trainer, made anew by each call."""

    def spec(folder: str = data, size: int = 8, **options: Any) -> Any:
        return streaming_data_spec(StreamingDataset(local=folder, shuffle=True, **options), batch_size=size)

    def foreign(size: int) -> Any:
        rows: Any = [{'other': row} for row in range(60)]
        return torch.utils.data.DataLoader(rows, batch_size=size)  # pyright: ignore[reportArgumentType]

    packing = Packing(sequence_length=32, sequences_per_epoch=28, column='tokens')
    return {
        'whole': spec,
        'skipped': lambda: spec(skip=((8, 20), (40, 60))),
        'other size': lambda: spec(uneven, 12),
        'short': lambda: spec(epoch_size=16),
        'packed': lambda: streaming_data_spec(PackedDataset(local=tokens, packing=packing), batch_size=4),
        'plain loader': lambda: torch.utils.data.DataLoader(StreamingDataset(local=data, batch_size=6), batch_size=6),
        'foreign': lambda: foreign(5),
    }


@pytest.fixture(scope='module')
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp('tokens'))
    with MDSWriter(out=folder, columns={'tokens': 'ndarray:int32'}) as writer:
        for number in range(100):
            writer.write({'tokens': np.arange(number, number + 12, dtype=np.int32)})
    return folder


def go_on(first: Any, second: Any, durations: Sequence[str], path: Path | None = None, **options: Any) -> list[str]:
    """The batches of 2 epochs of other data, after those durations with the first."""
    trainer = trainer_of(first, AnyModel(), max_duration=durations[0])
    for duration in (None, *durations[1:]):
        trainer.fit(duration=duration)
    place = Place(path)
    trainer.state.callbacks.append(place)
    trainer.fit(train_dataloader=second, duration='2ep', **options)
    trainer.close()
    return place.seen


@pytest.mark.parametrize(
    ('durations', 'spin'),
    [
        (['1ep', '3ba'], True),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in [(['3ba'], True), (['1ep'], True), (['1ep', '3ba'], False)]
        ),
    ],
    ids=str,
)
def test_a_trainer_that_goes_on_with_other_data_trains_it_as_a_new_one(
    data: str, uneven: str, tokens: str, tmp_path: Path, durations: list[str], spin: bool
) -> None:
    make, path = kinds_of_data(data, uneven, tokens), tmp_path / 'second.pt'
    duration = '3ep' if '1ep' in durations else '2ep'
    alone = {second: go_on(make['foreign'](), make[second](), durations, spin_dataloaders=spin) for second in make}
    for first, second in itertools.product(('skipped', 'packed', 'plain loader', 'foreign'), make):
        seen = go_on(make[first](), make[second](), durations, path, spin_dataloaders=spin)
        assert seen == alone[second], f'{first}, then {second}'
        if spin or second != 'foreign':
            place = Place()
            rest = trainer_of(make[second](), AnyModel(), [place], load_path=str(path), max_duration=duration)
            rest.fit()
            rest.close()
            assert place.seen == seen[2:], f'{first}, then {second}, from a checkpoint'


@pytest.mark.parametrize('spin', [True, False], ids=['spin', 'no spin'])
@pytest.mark.parametrize('between', ['other size', 'foreign'])
def test_data_that_come_back_in_mid_epoch_are_taken_as_new_ones(
    data: str, uneven: str, tokens: str, between: str, spin: bool
) -> None:
    make, place = kinds_of_data(data, uneven, tokens), Place()
    first = make['skipped']()
    trainer = trainer_of(first, AnyModel(), max_duration='1ep')
    trainer.fit()
    trainer.fit(duration='2ba')
    trainer.fit(train_dataloader=make[between](), duration='1ba')
    trainer.state.callbacks.append(place)
    trainer.fit(train_dataloader=first, duration='2ep', spin_dataloaders=spin)
    assert place.seen == go_on(make['foreign'](), make['skipped'](), ['1ep', '3ba'], spin_dataloaders=spin)
