"""Settings of a packing that are refused."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace.errors import ConfigError
from headrace.packing import Packing


@pytest.mark.parametrize(
    ('options', 'messages'),
    [
        ({'sequence_length': 1}, ['`sequence_length` must be at least 2 (got 1)']),
        (
            {'lanes': 0, 'window': -1},
            ['`lanes` must be at least 1 (got 0)', '`window` must be at least 1'],
        ),
        ({'method': 'tetris'}, ["`method` must be one of best_fit, concatenate (got 'tetris')"]),
        ({'token_dtype': 'float32'}, ["int32, int64 (got 'float32')"]),
        ({'lanes': 8, 'sequences_per_epoch': 20}, ['multiple of the 8 `lanes`; nearest: 16 or 24 (got 20)']),
        ({'eos_token_id': -1}, ['`eos_token_id` must be at least 0']),
    ],
)
def test_settings(options, messages):
    with pytest.raises(ConfigError) as raised:
        Packing(**{'sequence_length': 8, **options})
    for message in messages:
        assert message in str(raised.value)


class Noted(Packing):
    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, 'note', 1)


@pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy, lambda packing: pickle.loads(pickle.dumps(packing))])
def test_copies_of_a_subclass_keep_its_attributes(copied) -> None:
    assert copied(Noted(sequence_length=8)).note == 1


@pytest.mark.parametrize('name', ['method', 'weights_count'])
def test_none_is_no_choice(name: str) -> None:
    with pytest.raises(ConfigError, match=f'`{name}` must be one of'):
        Packing(sequence_length=8, **{name: None})
