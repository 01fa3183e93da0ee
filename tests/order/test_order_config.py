"""Settings of the order: defaults, and what is refused."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError, UnknownNameError
from headrace.order import (
    Mixture,
    OrderConfig,
    Schedule,
    make_order,
)
from tests.support.orders.mosaicml_plans import TWO_STREAMS
from tests.support.orders.order_cases import mixture


def test_defaults_depend_on_the_nodes_that_a_run_begins_on():
    def resolved(algorithm, nodes):
        config = OrderConfig(algorithm=algorithm, shuffle=True).resolve_defaults(TWO_STREAMS, nodes)
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
        make_order(TWO_STREAMS, OrderConfig(**config), 0)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, UnknownNameError) == (error is KeyError)


class TestDefaults:
    @pytest.mark.parametrize(('shards', 'nodes'), [(1, 1), (127, 1), (128, 2), (1000, 8), (4096, 64), (10**5, 64)])
    def test_canonical_nodes_follow_from_the_number_of_shards(self, shards: int, nodes: int) -> None:
        config = OrderConfig(shuffle=True).resolve_defaults(mixture([2] * shards))
        assert config.num_canonical_nodes == nodes
        assert config.block_size == max(4_000_000 // nodes, 262_144)
        assert config.algorithm == 'native'
        assert OrderConfig(shuffle=False).resolve_defaults(mixture([2] * shards)).num_canonical_nodes == 1

    def test_given_values_stay(self) -> None:
        config = OrderConfig(shuffle=True, num_canonical_nodes=5, block_size=9).resolve_defaults(mixture([2]))
        assert (config.num_canonical_nodes, config.block_size) == (5, 9)

    @pytest.mark.parametrize(
        ('config', 'epoch', 'named'),
        [
            ({'algorithm': 'py1x'}, 0, "'py1x'"),
            ({'batching': 'by_size'}, 0, "'by_size'"),
            ({}, -1, '-1'),
        ],
    )
    def test_unknown_names_are_refused(self, config: dict, epoch: int, named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            make_order(mixture([2]), OrderConfig(**config), epoch)

    @pytest.mark.parametrize('config', [{'seed': -1}, {'block_size': 0}, {'num_canonical_nodes': 1.5}])
    def test_values_out_of_range_are_refused(self, config: dict) -> None:
        with pytest.raises(ConfigError, match=next(iter(config))):
            OrderConfig(**config)


@pytest.mark.parametrize('name', ['batching', 'sampling', 'partition'])
@pytest.mark.parametrize('algorithm', [None, 'native', 'py1e'])
def test_unknown_values_are_refused_with_the_known_ones(name: str, algorithm: str | None) -> None:
    with pytest.raises(UnknownNameError if name == 'partition' else ConfigError, match=r"one of \['.*got 'other'"):
        OrderConfig(algorithm=algorithm, **{name: 'other'})


def test_arguments_that_do_not_go_together_are_refused() -> None:
    partial, config = mixture([40] * 10, choose=[100]), OrderConfig(sampling_granularity=5)
    with pytest.raises(ConfigError, match=r"needs sampling_method 'fixed', got 5 for stream 's0'.*or one of MosaicML"):
        make_order(partial, config, 0)
    make_order(mixture([40] * 10), config, 0)  # it matters to streams that are taken in part only
    make_order(partial, OrderConfig(sampling_granularity=5, algorithm='py1e'), 0)
    scheduled = Mixture.resolve(mixture([400]).streams, schedule=Schedule.of([{'at': 0, 'proportions': {'s0': 1}}]))
    with pytest.raises(ConfigError, match="'fixed' needs epochs that draw the same"):
        make_order(scheduled, OrderConfig(sampling='fixed'), 0)
