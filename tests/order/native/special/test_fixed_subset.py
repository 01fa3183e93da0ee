"""`sampling_method='fixed'`: the same samples of a stream in each epoch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ResumeError
from headrace.order import Mixture, OrderConfig, ResumeState, StreamSize, make_order
from headrace.order.native.special.fixed_subset import FixedSubset
from headrace.order.resume import resume
from tests.support.orders.order_cases import mixture, relaxed, shard_lists, whole


@relaxed
@given(shard_lists, st.integers(1, 200), st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_a_subset_is_whole_copies_and_a_part_in_stored_order(sizes, choose: int, granularity: int, key: int) -> None:
    stream = StreamSize(name='a', shard_sizes=np.array(sizes))
    copies, rest = divmod(choose, stream.size)
    subset = FixedSubset(stream, choose, granularity, key)
    samples = subset.samples(np.arange(choose))
    counts = np.bincount(samples, minlength=stream.size)
    assert len(counts) == stream.size
    assert counts.min() >= copies
    assert counts.max() <= copies + 1
    assert (counts > copies).sum() == rest
    shards = np.repeat(np.arange(len(sizes)), sizes)
    assert (np.diff(shards[samples]) >= 0).all()
    of_shards = np.bincount(shards[counts > copies], minlength=len(sizes))
    if granularity == 1:
        assert (np.abs(of_shards - np.array(sizes) * rest / stream.size) < 1).all()
    else:  # all but the last ones, which make up the total
        assert ((of_shards % granularity != 0) & (of_shards != sizes)).sum() <= granularity
    for sample in range(stream.size):
        assert subset.numbers(sample) == (samples == sample).nonzero()[0].tolist()
    if not copies:
        assert (np.diff(samples) > 0).all()


def test_more_granularity_touches_fewer_shards() -> None:
    stream = StreamSize(name='a', shard_sizes=[100] * 50)
    shards = [len(set((FixedSubset(stream, 500, g, 1).samples(np.arange(500)) // 100).tolist())) for g in (1, 50, 100)]
    assert shards == [50, 10, 5]


def test_every_sample_is_equally_likely() -> None:
    stream = StreamSize(name='a', shard_sizes=[9, 0, 14, 2])
    counts = np.zeros(25, int)
    for key in range(3000):
        counts += np.bincount(FixedSubset(stream, 10, 1, key).samples(np.arange(10)), minlength=25)
    expected = 3000 * 10 / 25
    assert ((counts - expected) ** 2 / (expected * 0.6)).sum() < 60  # chi-square, 24 degrees of freedom: p < 1e-4


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('nodes', [1, 4])
def test_each_epoch_has_the_same_samples_and_finds_them(shuffle: bool, nodes: int) -> None:
    mix = mixture([10, 0, 7, 23], [5, 9], [6], choose=[17, 35, 12])
    config = OrderConfig(
        shuffle=shuffle, num_canonical_nodes=nodes, sampling='fixed', sampling_granularity=3, block_size=9
    )
    orders = [make_order(mix, config, epoch) for epoch in range(4)]
    epochs = [whole(order) for order in orders]
    assert len({tuple(np.sort(ids)) for ids in epochs}) == 1
    if shuffle:
        assert len({tuple(ids) for ids in epochs}) == 4
    for order, ids in zip(orders[:2], epochs, strict=False):
        for sample in range(mix.num_samples):
            assert list(order.find(sample)) == (ids == sample).nonzero()[0].tolist()


def test_streams_that_an_epoch_takes_whole_are_as_with_balanced_sampling() -> None:
    mix = mixture([10, 7, 23], [5, 9], choose=[40, 28])
    orders = [make_order(mix, OrderConfig(shuffle=True, sampling=how), 1) for how in ('balanced', 'fixed')]
    assert whole(orders[0]).tolist() == whole(orders[1]).tolist()


def test_a_change_of_the_mixture_keeps_the_subsets_of_the_streams_that_are_drawn_alike() -> None:
    def mix(b: int) -> Mixture:
        return mixture([40] * 10, [30] * 10, choose=[100, b])

    config = OrderConfig(shuffle=True, num_canonical_nodes=4, sampling='fixed', block_size=50)
    state = ResumeState.of(config, mix(120), epoch=1, sample_in_epoch=77)
    state = ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
    same, _ = resume(state, config, mix(120))
    assert whole(make_order(same, config, 1)).tolist() == whole(make_order(mix(120), config, 1)).tolist()
    changed, _ = resume(state, config, mix(60), may_change_mixture=True)
    before = whole(make_order(mix(120), config, 1))
    after = make_order(changed, config, 1).at(np.arange(77, changed.epoch_size))
    later = np.concatenate([whole(make_order(changed, config, epoch)) for epoch in (3, 4)])
    assert set(after[after < 400]) <= set(before[before < 400])
    assert set(later[later < 400]) == set(before[before < 400])  # passes do not begin with epochs any more
    # The pass of the first stream continues: what epoch 1 had of it before the change does not come again in it.
    had = before[:77][before[:77] < 400]
    rest = 100 - len(had)
    assert not set(had) & set(after[after < 400][:rest])
    assert len(set(later[later >= 400])) == 60


def test_a_checkpoint_of_a_run_that_ignored_fixed_sampling_continues_with_balanced() -> None:
    mix = mixture([40] * 10, choose=[100])
    config = OrderConfig(shuffle=True, num_canonical_nodes=4)
    state = ResumeState.of(config, mix, epoch=1, sample_in_epoch=40).to_dict()
    old = json.loads(str(state['config'])) | {'sampling': 'fixed', 'sampling_granularity': 7}
    state = ResumeState.from_dict(state | {'config': json.dumps(old)})
    assert resume(state, config, mix)[0].takeover == mix.takeover
    with pytest.raises(ResumeError, match=r"sampling: 'balanced' in the checkpoint, 'fixed' now"):
        resume(state, OrderConfig(shuffle=True, num_canonical_nodes=4, sampling='fixed'), mix)
