from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from order_cases import mixture

from headrace.errors import ResumeError
from headrace.order import OrderConfig, ResumeState, make_order, resolved_from_state
from headrace.order.resume import resume

MIX = mixture([10] * 30, [5] * 9, choose=[300, 90])
CONFIG = OrderConfig(shuffle=True, seed=7, num_canonical_nodes=2)
STATE = ResumeState.of(CONFIG, MIX, epoch=3, sample_in_epoch=24)
MOSAICML = {
    'epoch': 0,
    'sample_in_epoch': 24,
    'num_canonical_nodes': 4,
    'shuffle_seed': 9176,
    'initial_physical_nodes': 1,
}


def test_a_state_is_a_flat_dict_of_ints_and_text_with_fixed_keys() -> None:
    state = STATE.to_dict()
    assert list(state) == [
        'epoch',
        'sample_in_epoch',
        'num_canonical_nodes',
        'shuffle_seed',
        'initial_physical_nodes',
        'headrace',
        'epoch_size',
        'config',
    ]
    assert {type(value) for value in state.values()} == {int, str}
    assert ResumeState.from_dict(json.loads(json.dumps(state))) == STATE


def test_mosaicmls_states_load_and_are_written_as_they_were() -> None:
    state = ResumeState.from_dict(MOSAICML)
    assert state.version is None
    assert state.to_dict() == MOSAICML
    short = {key: value for key, value in MOSAICML.items() if key != 'initial_physical_nodes'}
    assert ResumeState.from_dict(short).to_dict() == short
    assert ResumeState.from_dict(MOSAICML | {'epoch': -1}).is_stale
    assert not state.is_stale


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        ({'headrace': 2}, 'version 1, got 2'),
        ({'headrace': '1'}, "got '1'"),
        ({'epoch': None}, 'epoch is missing'),
        ({'config': None}, 'config is missing'),
        ({'epoch_size': None, 'shuffle_seed': None}, 'shuffle_seed is missing; epoch_size is missing'),
        ({'epoch': 1.0}, 'epoch must be an int, got 1.0'),
        ({'sample_in_epoch': True}, 'sample_in_epoch must be an int, got True'),
        ({'sample_in_epoch': -5}, 'sample_in_epoch must be at least 0, got -5'),
        ({'config': '[]'}, r"config must be a JSON object in a str, got '\[\]'"),
        ({'config': '{'}, 'config must be a JSON object'),
    ],
    ids=str,
)
def test_broken_states_are_refused_by_field(change: dict, named: str) -> None:
    state = {key: value for key, value in (STATE.to_dict() | change).items() if value is not None}
    with pytest.raises(ResumeError, match=named):
        ResumeState.from_dict(state)


def test_only_our_finished_epochs_roll_over() -> None:
    finished = replace(STATE, sample_in_epoch=384)
    assert finished.rolled_over(384) == replace(STATE, epoch=4, sample_in_epoch=0)
    assert finished.rolled_over(390) is finished
    assert STATE.rolled_over(384) is STATE
    mosaicmls = ResumeState.from_dict(MOSAICML)
    assert mosaicmls.rolled_over(24) is mosaicmls


def test_the_same_data_and_config_pass_on_another_world() -> None:
    resume(STATE, CONFIG, MIX)
    resume(STATE, resolved_from_state(OrderConfig(shuffle=True), STATE), MIX)
    mosaicmls = ResumeState.from_dict(MOSAICML)
    resume(mosaicmls, resolved_from_state(OrderConfig(num_canonical_nodes=4), mosaicmls), MIX)


def test_all_differences_are_named_with_both_values() -> None:
    grown = mixture([10] * 31, [5] * 9, choose=[300, 80])
    with pytest.raises(ResumeError) as caught:
        resume(STATE, replace(CONFIG, seed=8, block_size=999, algorithm='other'), grown)
    for text in (
        'shuffle_seed: 7 in the checkpoint, 8 now',
        'block_size: 2000000 in the checkpoint, 999 now',
        "algorithm: 'native' in the checkpoint, 'other' now",
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
