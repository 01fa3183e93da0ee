"""MosaicML Streaming's orders, beyond the reference vectors: few samples, ties, elasticity, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_cases import mixture

from headrace.errors import ConfigError, ResumeError, TopologyError, UnknownNameError
from headrace.order import OrderConfig, ResumeState, Topology, make_order, make_plan, resolved_from_state
from headrace.order.mosaicml.partition import Partition
from headrace.order.resume import resume
from headrace.order.shuffle import ALGORITHMS, PERMUTATIONS
from headrace.order.shuffle.py1e import stable_argsort

MIX = mixture([40] * 5, [7] * 20)


def plans(mix, nodes, ranks, size, *, start=0, epoch=0, initial=None, remainder='repeat', **config):
    config = {'shuffle': True, 'algorithm': 'py1e', 'num_canonical_nodes': 4, 'block_size': 50, **config}
    order = make_order(mix, OrderConfig(**config), epoch)
    world = nodes * ranks
    return [
        make_plan(
            order, Topology(rank=r, world_size=world, num_nodes=nodes), global_batch_size=size, start=start,
            remainder=remainder, initial_nodes=initial,
        )
        for r in range(world)
    ]  # fmt: skip


def global_batches(plans_of_ranks):
    return [
        sorted(np.concatenate([p.ids(k) for p in plans_of_ranks]).tolist())
        for k in range(plans_of_ranks[0].num_batches)
    ]


@pytest.mark.parametrize('algorithm', sorted(PERMUTATIONS))
@pytest.mark.parametrize('resampled', [{}, {'choose': [150, 410]}])
def test_every_sample_is_drawn_as_often_as_asked_for(algorithm, resampled):
    mix = mixture([40] * 5, [7] * 20, **resampled)
    order = make_order(mix, OrderConfig(shuffle=True, algorithm=algorithm, num_canonical_nodes=3, block_size=30), 2)
    ids = order.at(np.arange(len(order)))
    counts = np.bincount(ids, minlength=mix.num_samples)
    for stream, choose in enumerate(mix.choose):
        of_stream = counts[mix.sample_offsets[stream] : mix.sample_offsets[stream + 1]]
        assert of_stream.sum() == choose
        assert of_stream.max() - of_stream.min() <= 1


@pytest.mark.parametrize('config', [{}, {'algorithm': 'py1s'}, {'algorithm': 'naive'}, {'batching': 'stratified'}])
def test_elastic_methods_keep_their_global_batches_on_other_topologies(config):
    whole = global_batches(plans(MIX, 1, 1, 8, **config))
    for nodes, ranks in [(2, 1), (2, 2), (4, 2), (1, 8)]:
        assert global_batches(plans(MIX, nodes, ranks, 8, **config))[:-2] == whole[:-2]
        assert global_batches(plans(MIX, nodes, ranks, 8, start=80, **config))[:-2] == whole[10:-2]


def test_a_relaxed_run_continues_on_nodes_that_do_not_fit_its_canonical_nodes():
    whole = global_batches(plans(MIX, 2, 1, 12))
    assert global_batches(plans(MIX, 3, 1, 12, start=48, initial=2))[:-2] == whole[4:-2]
    with pytest.raises(TopologyError, match='4 canonical nodes on 3 nodes'):
        plans(MIX, 3, 1, 12)
    with pytest.raises(TopologyError, match='multiple of the 2 ranks of the 2 nodes'):
        plans(MIX, 3, 1, 15, initial=2)


@given(
    st.integers(1, 40), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.integers(1, 5)
)
def test_few_samples_on_more_nodes_than_canonical_ones_leave_ranks_equal(samples, parts, ratio, ranks, batch):
    partition = Partition(samples, parts, nodes=parts * ratio, ranks=ranks, batch_size=batch)
    rows = partition.rows(np.arange(partition.num_rows)).reshape(-1, parts * ratio * ranks, batch)
    per_rank = (rows >= 0).sum((0, 2))
    assert per_rank.min() == per_rank.max() > 0
    assert set(rows[rows >= 0].tolist()) == set(range(samples))


def test_equal_elements_are_sorted_in_their_own_order():
    for n in (1, 2, 7, 100, 70_000):
        x = np.random.default_rng(n).integers(0, max(n // 3, 1), n).astype(np.float64)
        assert np.array_equal(stable_argsort(x), np.argsort(x, kind='stable'))


def test_dropping_the_remainder_keeps_ranks_equal_where_repeats_would_not():
    config = {'batching': 'device_per_stream', 'num_canonical_nodes': 2, 'shuffle': False}
    assert len({p.num_batches for p in plans(mixture([12]), 2, 2, 8, **config)}) == 2
    dropped = plans(mixture([13] * 4), 2, 2, 8, remainder='drop', **config)
    assert len({p.num_batches for p in dropped}) == 1
    assert all(len(p.ids(k)) == 2 for p in dropped for k in range(p.num_batches))


def test_an_end_beyond_the_last_sample_is_an_empty_pass():
    # 67 samples on 8 canonical nodes are handed out as 72; MosaicML Streaming cannot resume there.
    mix = mixture([22, 22, 22, 1])
    (plan,) = plans(mix, 1, 1, 4, algorithm='naive', num_canonical_nodes=8)
    assert (plan.num_batches, plan.stop, plan.epoch_samples) == (18, 72, 72)
    (rest,) = plans(mix, 1, 1, 4, algorithm='naive', num_canonical_nodes=8, start=72)
    assert (rest.num_batches, rest.stop, rest.total_batches) == (0, 72, 18)
    with pytest.raises(ResumeError, match='inside an epoch of 67 samples, got position 76'):
        plans(mix, 1, 1, 4, algorithm='naive', num_canonical_nodes=8, start=76)


def test_defaults_depend_on_the_nodes_that_a_run_begins_on():
    def resolved(algorithm, nodes):
        config = OrderConfig(algorithm=algorithm, shuffle=True).resolve_defaults(MIX, nodes)
        return config.num_canonical_nodes, config.block_size

    assert resolved('py1e', 2) == resolved('py1br', 2) == resolved('naive', 2) == (2, 2_000_000)
    assert resolved('py1s', 2) == resolved('py2s', 2) == (128, 262_144)


@pytest.mark.parametrize(
    ('config', 'error', 'message'),
    [
        ({'algorithm': 'py3s'}, KeyError, "shuffle_algo must be one of.*got 'py3s'"),
        ({'algorithm': 'naive', 'partition': 'strict'}, KeyError, "partition_algo must be one of.*got 'strict'"),
        ({'algorithm': 'naive', 'batching': 'mixed'}, ValueError, "batching_method must be one of.*got 'mixed'"),
        ({'algorithm': 'naive', 'sampling': 'other'}, ValueError, "sampling_method must be one of.*got 'other'"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_computed(config, error, message):
    with pytest.raises(error, match=message) as caught:
        make_order(MIX, OrderConfig(**config), 0)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, UnknownNameError) == (error is KeyError)


def test_py1e_wants_a_sample_for_each_canonical_node():
    order = make_order(mixture([5]), OrderConfig(algorithm='py1e', shuffle=True, num_canonical_nodes=8), 0)
    with pytest.raises(ConfigError, match='at least one sample for each canonical node, got 5 samples for 8'):
        order.at(np.arange(5))


def test_mosaicmls_checkpoint_is_no_position_of_the_native_order():
    state = ResumeState.from_dict({'epoch': 0, 'sample_in_epoch': 8, 'num_canonical_nodes': 4, 'shuffle_seed': 1})
    config = resolved_from_state(OrderConfig(algorithm='native', shuffle=True), state)
    with pytest.raises(ResumeError, match="one of its orders, got shuffle_algo 'native'"):
        resume(state, config, MIX)


def test_a_state_without_a_key_says_which():
    with pytest.raises(KeyError, match='epoch is missing') as caught:
        ResumeState.from_dict({'sample_in_epoch': 8, 'num_canonical_nodes': 4, 'shuffle_seed': 1})
    assert isinstance(caught.value, ResumeError)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_the_page_of_orders_names_every_algorithm(algorithm: str) -> None:
    assert f'`{algorithm}`' in (Path(__file__).parents[3] / 'docs' / 'order.md').read_text()
