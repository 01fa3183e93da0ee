"""Batches by the number that a trainer counts: against a list of all batches of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError
from headrace.order import batches_after, batches_before, find_batch, parse_skip, run_range, with_more

Place = tuple[int, int, tuple[int, int]]


@pytest.fixture
def loader(make_dataset):
    """Of 100 samples, in batches of 12: 9 in an epoch."""

    def make(**options: Any) -> StreamingDataLoader:
        arguments = {'local': str(make_dataset_once()), 'shuffle': True, 'batch_size': 12, **options}
        return StreamingDataLoader(StreamingDataset(**arguments))

    made: list[Any] = []

    def make_dataset_once() -> Any:
        if not made:
            made.append(make_dataset())
        return made[0]

    return make


def every(loader: StreamingDataLoader, epochs: int = 6) -> list[Place]:
    """Epoch, number in it, and samples of the run of every batch."""
    size = loader.dataset.epoch_size
    plans = [loader.plan(epoch) for epoch in range(epochs)]
    places: list[Place] = []
    for epoch, plan in enumerate(plans):
        for k in range(plan.num_batches):
            positions = plan.positions(k)[: plan.own_samples(k)] + epoch * size
            places.append((epoch, k, (int(positions.min()), int(positions.max()) + 1)))
    return places


def place(batch: Any) -> Place:
    plan, k = batch
    return plan.order.epoch, plan.batches_before + k, run_range(plan, k)


SKIPS = [(), ((20, 30),), ((0, 210), (330, 340)), (('4ba', '5ba'), ('10ba', '20ba'))]


@pytest.mark.parametrize('skip', SKIPS)
@pytest.mark.parametrize('remainder', ['repeat', 'drop'])
def test_every_batch_is_found_with_its_neighbours(loader, skip, remainder) -> None:
    run = loader(skip=skip, remainder=remainder)
    places = every(run)
    for number, expected in enumerate(places[:-3]):
        found = find_batch(run.plan, number, skip=run.dataset.skip)
        assert place(found) == expected
        assert [*map(place, batches_before(run.plan, *found, 3))] == places[max(number - 3, 0) : number]
        assert [*map(place, batches_after(run.plan, *found, 3))] == places[number + 1 : number + 4]


def test_batches_are_counted_from_a_position(loader) -> None:
    run = loader(skip=((20, 30),))
    places = every(run)
    at = run.plan(0).end(4)
    for number in range(12):
        found = find_batch(run.plan, number, epoch=0, start=at, skip=run.dataset.skip)
        assert place(found) == places[5 + number]
        # Batches from before the position are known, too.
        assert [*map(place, batches_before(run.plan, *found, 2))] == places[3 + number : 5 + number]


def test_a_batch_is_found_at_once_however_late(loader) -> None:
    run = loader(skip=((20, 130),))
    plan, k = find_batch(run.plan, 10**12, skip=run.dataset.skip)
    kept = sum(run.plan(epoch).num_batches for epoch in range(2))
    assert (plan.order.epoch, k) == (2 + (10**12 - kept) // 9, (10**12 - kept) % 9)


def test_epochs_without_batches_are_refused(loader) -> None:
    run = loader(remainder='drop', batch_size=101)
    with pytest.raises(ConfigError, match='have no batches from epoch 1 on'):
        find_batch(run.plan, 0)


@pytest.mark.parametrize('skip', SKIPS[:3])
def test_its_range_leaves_exactly_the_batch_out(loader, skip) -> None:
    def ids(run: StreamingDataLoader) -> list[list[int]]:
        plans = [run.plan(epoch) for epoch in range(4)]
        return [sorted(plan.ids(k).tolist()) for plan in plans for k in range(plan.num_batches)]

    run = loader(skip=skip)
    for number in (0, 5, 9):
        found = find_batch(run.plan, number, skip=run.dataset.skip)
        without = loader(skip=with_more(run.dataset.skip, [run_range(*found)]))
        assert ids(without) == ids(run)[:number] + ids(run)[number + 1 :]


def test_samples_of_the_run_continue_after_epochs_have_changed_their_size(loader) -> None:
    before, now = loader(), loader(epoch_size=48, on_mixture_change='continue')
    now.load_state_dict(before.dataset.resume_state(2, 24, 12).to_dict())
    epoch, start = now.next_pass()
    first = find_batch(now.plan, 0, epoch=epoch, start=start)
    assert run_range(*first) == (224, 236)
    assert run_range(*batches_after(now.plan, *first, 2)[1]) == (248, 260)
    assert not batches_before(now.plan, *first, 1)  # another mixture gave them
    # And the range leaves it out.
    without = loader(epoch_size=48, on_mixture_change='continue', skip=[[248, 260]])
    without.load_state_dict(before.dataset.resume_state(2, 24, 12).to_dict())
    ids = [np.sort(plan.ids(k)).tolist() for plan, k in [first, *batches_after(now.plan, *first, 8)]]
    there = find_batch(without.plan, 0, epoch=epoch, start=start, skip=without.dataset.skip)
    assert [np.sort(plan.ids(k)).tolist() for plan, k in [there, *batches_after(without.plan, *there, 7)]] == ids[
        :2
    ] + ids[3:]


def test_ranges_are_merged_as_they_are_written() -> None:
    skip = parse_skip([['3ba', '5ba'], [40, 48], [8, 16], ['16sp', '20sp'], [100, '20ba']])
    assert with_more(skip, [(48, 56), (12, 14)]) == [['3ba', '5ba'], [100, '20ba'], [8, 20], [40, 56]]
    assert parse_skip(with_more(skip, []))
    assert with_more((), [(5, 5)]) == []
