from __future__ import annotations

import json

import pytest

from headrace.errors import ResumeError
from headrace.order import ResumeState
from tests.support.orders.state_cases import MOSAICML, STATE


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


def test_a_state_without_a_key_says_which():
    with pytest.raises(KeyError, match='epoch is missing') as caught:
        ResumeState.from_dict({'sample_in_epoch': 8, 'num_canonical_nodes': 4, 'shuffle_seed': 1})
    assert isinstance(caught.value, ResumeError)
