"""Samples of each stream over all ranks, and those that the mixture promises."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace import PADDING, StreamingDataLoader, Topology
from tests.support.orders.counted_streams import counted_dataset, stream_of


@pytest.mark.parametrize('ranks', [1, 2, 4])
@pytest.mark.parametrize('remainder', ['repeat', 'exact', 'drop'])
def test_ranks_add_up_to_the_mix_that_each_of_them_knows(counted_remote, ranks, remainder):
    total, mixes, unpadded = Counter(), [], Counter()
    for rank in range(ranks):
        loader = StreamingDataLoader(
            counted_dataset(counted_remote[0], batch_size=16 // ranks, remainder=remainder),
            topology=Topology(rank=rank, world_size=ranks),
        )
        for batch in loader:
            own = loader.own_samples
            if remainder == 'exact':
                assert int(batch[PADDING].sum()) == len(batch['id']) - own
            unpadded.update(stream_of(i) for i in batch['id'].tolist()[:own])
        total.update(loader.stats().stream_samples)
        mixes.append(loader.mix())
    assert total == unpadded
    assert all(mix == mixes[0] for mix in mixes)
    assert {name: count.samples for name, count in mixes[0].items()} == dict(total)
    assert sum(count.promised for count in mixes[0].values()) == pytest.approx(total.total())


def test_the_promise_follows_a_schedule(counted_remote):
    schedule = [
        {'at': 0, 'proportions': {'a': 1}},
        {'at': 80, 'proportions': {'a': 1, 'b': 3}},
    ]
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8, epoch_size=120, schedule=schedule))
    promised = []
    for _ in range(2):
        for _batch in loader:
            promised.append({name: count.promised for name, count in loader.mix().items()})
    assert promised[9] == pytest.approx({'a': 80, 'b': 0, 'c': 0})
    assert promised[14] == pytest.approx({'a': 90, 'b': 30, 'c': 0})
    assert promised[29] == pytest.approx({'a': 120, 'b': 120, 'c': 0})
    for name, count in loader.mix().items():
        assert abs(count.samples - promised[29][name]) <= 1


def test_skipped_samples_are_neither_counted_nor_promised(counted_remote):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=10, skip=[[20, 55]]))
    ids = [i for batch in loader for i in batch['id'].tolist()]
    assert loader.stats().samples == len(ids) == 135
    assert {n: c.samples for n, c in loader.mix().items()} == Counter(map(stream_of, ids))
    assert sum(c.promised for c in loader.mix().values()) == pytest.approx(135)


@pytest.mark.parametrize('batching', ['random', 'stratified', 'per_stream'])
def test_mosaicml_orders_are_counted_as_well(counted_remote, batching):
    data = counted_dataset(counted_remote[0], batch_size=5, shuffle_algo='py1e', batching_method=batching)
    loader = StreamingDataLoader(data, topology=Topology(rank=0, world_size=2))
    other = StreamingDataLoader(
        counted_dataset(counted_remote[0], batch_size=5, shuffle_algo='py1e', batching_method=batching),
        topology=Topology(rank=1, world_size=2),
    )
    both = Counter(stream_of(i) for each in (loader, other) for batch in each for i in batch['id'].tolist())
    assert {name: count.samples for name, count in loader.mix().items()} == both
