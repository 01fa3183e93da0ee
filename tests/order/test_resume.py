"""From a state to the position that a run goes on with, or to the differences that forbid it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.errors import ResumeError
from headrace.order import OrderConfig, ResumeState, make_order, resolved_from_state
from headrace.order.resume import resume
from tests.support.orders.mosaicml_plans import TWO_STREAMS
from tests.support.orders.order_cases import mixture
from tests.support.orders.state_cases import CONFIG, MIX, MOSAICML, STATE


def test_the_same_data_and_config_pass_on_another_world() -> None:
    resume(STATE, CONFIG, MIX)
    resume(STATE, resolved_from_state(OrderConfig(shuffle=True), STATE), MIX)
    mosaicmls = ResumeState.from_dict(MOSAICML)
    resume(mosaicmls, resolved_from_state(OrderConfig(num_canonical_nodes=4), mosaicmls), MIX)


def test_all_differences_are_named_with_both_values() -> None:
    grown = mixture([10] * 31, [5] * 9, choose=[300, 80])
    with pytest.raises(ResumeError) as caught:
        resume(STATE, replace(CONFIG, seed=8, block_size=999, algorithm='py1e'), grown)
    for text in (
        'shuffle_seed: 7 in the checkpoint, 8 now',
        'block_size: 2000000 in the checkpoint, 999 now',
        "algorithm: 'native' in the checkpoint, 'py1e' now",
        'epoch_size: 390 in the checkpoint, 380 now',
        "stream 's0' samples: 300 in the checkpoint, 310 now",
        "stream 's1' choose: 90 in the checkpoint, 80 now",
        "stream 's0' fingerprint",
    ):
        assert text in str(caught.value)


def test_streams_that_came_and_went_are_named() -> None:
    with pytest.raises(
        ResumeError, match=r"\['s0', 's1'\] in the checkpoint, \['s0'\] now.*'s1' samples: 45.*'nothing'"
    ):
        resume(STATE, CONFIG, mixture([10] * 30, choose=[300]))


def test_a_position_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(ResumeError, match='391'):
        resume(replace(STATE, sample_in_epoch=391), CONFIG, MIX)


def test_a_state_decides_what_it_pins() -> None:
    config = resolved_from_state(OrderConfig(shuffle=True), STATE)
    assert (config.seed, config.num_canonical_nodes, config.algorithm, config.block_size) == (7, 2, 'native', 2_000_000)
    given = resolved_from_state(OrderConfig(seed=9176, num_canonical_nodes=16, block_size=5), STATE)
    assert (given.seed, given.num_canonical_nodes, given.block_size) == (9176, 16, 5)
    mosaicmls = resolved_from_state(OrderConfig(seed=1, num_canonical_nodes=16), ResumeState.from_dict(MOSAICML))
    assert (mosaicmls.seed, mosaicmls.num_canonical_nodes) == (9176, 4)
    stale = ResumeState.from_dict(MOSAICML | {'epoch': -1})
    assert resolved_from_state(OrderConfig(), stale) == OrderConfig()


def test_mosaicmls_states_select_mosaicmls_algorithm() -> None:
    config = resolved_from_state(OrderConfig(shuffle=True), ResumeState.from_dict(MOSAICML))
    assert (config.algorithm, config.seed, config.num_canonical_nodes) == ('py1e', 9176, 4)
    assert resolved_from_state(OrderConfig(algorithm='py1s'), ResumeState.from_dict(MOSAICML)).algorithm == 'py1s'
    assert set(make_order(MIX, config, 0).at(np.arange(MIX.epoch_size)).tolist()) == set(range(MIX.num_samples))


def test_mosaicmls_checkpoint_is_no_position_of_the_native_order():
    state = ResumeState.from_dict({'epoch': 0, 'sample_in_epoch': 8, 'num_canonical_nodes': 4, 'shuffle_seed': 1})
    config = resolved_from_state(OrderConfig(algorithm='native', shuffle=True), state)
    with pytest.raises(ResumeError, match="one of its orders, got shuffle_algo 'native'"):
        resume(state, config, TWO_STREAMS)
