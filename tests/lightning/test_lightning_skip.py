"""Skipped ranges of a training: epochs of unequal length, and positions that keep their meaning."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import ResumeError
from tests.support.trainers.lightning_oracle import records
from tests.support.trainers.lightning_run import Crash, Run, dataset, train

# 96 samples an epoch, in batches of 8. Epoch 0 is short, epoch 1 skipped, epoch 2 short in another way.
SKIP = [['2ba', '4ba'], [70, 75], [96, 200], [230, 235]]


def slots(skip: list[tuple[int, int]], epochs: list[int], start: int = 0) -> list[list[int]]:
    out: list[list[int]] = []
    for epoch in epochs:
        kept = [s for s in range(96 * epoch, 96 * (epoch + 1)) if not any(a <= s < b for a, b in skip) and s >= start]
        out += [kept[k : k + 8] for k in range(0, len(kept), 8)]
    return out


RANGES = [(16, 32), (70, 75), (96, 200), (230, 235)]


def expected(run: Run, *args: Any) -> list[list[int]]:
    orders = [dataset(run, skip=()).order(epoch) for epoch in range(4)]
    ids = np.concatenate([order.at(np.arange(96)) for order in orders])
    return [sorted(ids[batch].tolist()) for batch in slots(*args)]


def trained(run: Run) -> list[list[int]]:
    return [sorted(record['ids']) for record in records(run)[0]]


@pytest.fixture
def make(mixes, tmp_path: Path):
    def make(name: str, skip: list[Any] = SKIP, **fields: Any) -> Run:
        options = {
            'out': str(tmp_path),
            'streams': mixes['even'],
            'dataset': {'skip': skip},
            'validate': True,
            **fields,
        }
        return Run(name=name, **options)

    return make


@pytest.mark.parametrize('interval', ['00:00:00:05', {'seconds': 5}, timedelta(seconds=5)])
def test_epochs_of_unequal_length_may_be_validated_by_time(make, interval: Any) -> None:
    run = make('timed', trainer={'max_epochs': 4, 'val_check_interval': interval})
    train(run)
    assert trained(run) == expected(run, RANGES, [0, 2, 3])


@pytest.mark.parametrize('workers', [0, 1])
def test_epochs_end_where_their_data_does(make, workers: int) -> None:
    run = make('whole', workers=workers, trainer={'max_epochs': 4})
    train(run)
    assert trained(run) == expected(run, RANGES, [0, 2, 3])
    # 10, 0, 12 and 12 batches; a skipped epoch counts.
    assert [record['epoch'] for record in records(run)[0]] == [0] * 10 + [2] * 11 + [3] * 12
    assert [record['epoch'] for record in records(run, 'validation')[0] if not record['validation']] == [0, 2, 3]
    assert [r['epoch'] for r in records(run, 'hook')[0] if r['hook'] == 'epoch_end'] == [0, 2, 3]


def test_a_run_ends_with_a_skipped_epoch(make) -> None:
    run = make('short', trainer={'max_epochs': 2})
    train(run)
    assert trained(run) == expected(run, RANGES, [0])


def test_a_run_may_begin_with_a_skipped_epoch(make) -> None:
    run = make('late', skip=[[0, 100]], trainer={'max_epochs': 2})
    train(run)
    assert trained(run) == expected(run, [(0, 100)], [1])
    assert {record['epoch'] for record in records(run)[0]} == {1}


@pytest.mark.parametrize('at', [1, 3, 9, 10, 11, 20, 23])
def test_it_continues_after_any_batch(make, at: int) -> None:
    first = make('first', crash_at=at, on_exception=True, trainer={'max_epochs': 4})
    with pytest.raises(Crash):
        train(first)
    second = make('second', checkpoint=str(first.checkpoints / 'exception.ckpt'), trainer={'max_epochs': 4})
    train(second)
    assert trained(first) + trained(second) == expected(first, RANGES, [0, 2, 3])
    epochs = [record['epoch'] for run in (first, second) for record in records(run)[0]]
    assert epochs == [0] * 10 + [2] * 11 + [3] * 12


@pytest.mark.parametrize('checkpoint', ['epoch0', 'val10', 'step10'])
def test_it_continues_at_the_end_of_an_epoch(make, checkpoint: str) -> None:
    saving = {'every_steps': 10, 'every_epoch': True, 'after_validation': True}
    first = make('first', crash_at=14, trainer={'max_epochs': 4}, **saving)
    with pytest.raises(Crash):
        train(first)
    second = make('second', checkpoint=str(first.checkpoints / f'{checkpoint}.ckpt'), trainer={'max_epochs': 4})
    train(second)
    assert trained(second) == expected(first, RANGES, [2, 3])
    assert [record['epoch'] for record in records(second)[0]] == [2] * 11 + [3] * 12


@pytest.mark.parametrize(('skip', 'ranges'), [([], []), ([[60, 90], [100, 150]], [(60, 90), (100, 150)])])
def test_ranges_may_change_at_a_resume(make, skip, ranges) -> None:
    first = make('first', crash_at=3, on_exception=True)
    with pytest.raises(Crash):
        train(first)
    # Two batches, then two that are skipped, then one. The checkpoint knows what its run would have skipped.
    options = {'checkpoint': str(first.checkpoints / 'exception.ckpt'), 'trainer': {'max_epochs': 3}}
    with pytest.raises(ResumeError, match=r'skip was \[70, 75\], \[96, 200\], \[230, 235\] from the checkpoint on'):
        train(make('refused', skip=skip, **options))
    second = make('second', dataset={'skip': skip, 'on_mixture_change': 'continue'}, **options)
    train(second)
    assert trained(second) == expected(first, ranges, [0, 1, 2], 40)
    validated = [record['epoch'] for record in records(second, 'validation')[0] if not record['validation']]
    assert validated == [0, 1, 2]


def test_more_may_be_skipped_at_a_resume(make) -> None:
    first = make('first', crash_at=3, on_exception=True)
    with pytest.raises(Crash):
        train(first)
    ranges = [*RANGES[1:], (80, 90)]
    checkpoint = str(first.checkpoints / 'exception.ckpt')
    second = make('second', skip=[list(r) for r in ranges], checkpoint=checkpoint, trainer={'max_epochs': 3})
    train(second)
    assert trained(second) == expected(first, ranges, [0, 2], 40)


def test_a_limit_counts_what_is_trained(make) -> None:
    run = make('limited', trainer={'max_epochs': 3, 'limit_train_batches': 4})
    train(run)
    every = expected(run, RANGES, [0]), expected(run, RANGES, [2])
    assert trained(run) == every[0][:4] + every[1][:4]


def test_a_second_fit_continues_after_a_skipped_epoch(make) -> None:
    run = make('fits', fits=[1, 2, 4])
    train(run)
    assert trained(run) == expected(run, RANGES, [0, 2, 3])
    assert [record['epoch'] for record in records(run)[0]] == [0] * 10 + [2] * 11 + [3] * 12


@pytest.mark.parametrize('limit', [None, 11])
def test_a_loader_whose_length_is_hidden_trains_all_that_is_left_in(make, limit: int | None) -> None:
    # 12, 4 and 12 batches. Lightning reads one batch ahead, so each epoch's pass begins before the epoch does.
    trainer = {'max_epochs': 3} if limit is None else {'max_epochs': 3, 'limit_train_batches': limit}
    ranges = [(96, 160)]
    first = make('first', skip=[[96, 160]], unsized=True, crash_at=14, on_exception=True, trainer=trainer)
    with pytest.raises(Crash):
        train(first)
    second = make('second', skip=[[96, 160]], unsized=True, trainer=trainer)
    second.checkpoint = str(first.checkpoints / 'exception.ckpt')
    train(second)
    every = [expected(first, ranges, [epoch]) for epoch in range(3)]
    assert trained(first) + trained(second) == [batch for epoch in every for batch in epoch[:limit]]
    counts = [len(epoch[:limit]) for epoch in every]
    epochs = [record['epoch'] for run in (first, second) for record in records(run)[0]]
    assert epochs == [epoch for epoch, count in enumerate(counts) for _ in range(count)]
