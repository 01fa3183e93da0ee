from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from composer.core.data_spec import default_split_batch

from headrace.composer.data_spec import count_composer_tokens, count_rows, first_rows, split_rows
from headrace.errors import ConfigError

pytestmark = pytest.mark.composer


class Pair(NamedTuple):
    x: Any
    y: Any


def rows(n: int, *shape: int) -> torch.Tensor:
    return torch.arange(n * int(np.prod(shape, dtype=int))).reshape(n, *shape)


def ragged(*lengths: int) -> list[torch.Tensor]:
    return [torch.arange(length) for length in lengths]


BATCHES = [
    pytest.param(rows(5), 5, id='tensor'),
    pytest.param(rows(5, 3).numpy(), 5, id='array'),
    pytest.param([rows(5, 2), rows(5)], 5, id='inputs-and-labels'),
    pytest.param((rows(5, 2), ['a', 'b', 'c', 'd', 'e']), 5, id='inputs-and-texts'),
    pytest.param(Pair(rows(5), {'z': rows(5)}), 5, id='named-tuple'),
    pytest.param(['a', 'bb', 'ccc'], 3, id='texts'),
    pytest.param([b'a', None, b'ccc'], 3, id='bytes-or-none'),
    pytest.param({'x': rows(5, 3), 'y': rows(5)}, 5, id='mapping'),
    pytest.param({'x': rows(5), 'text': list('abcde'), 'raw': [b'.'] * 5}, 5, id='mapping-with-texts'),
    pytest.param({'x': rows(3), 'tokens': ragged(4, 1, 9)}, 3, id='ragged'),
    pytest.param({'x': rows(3), 'tokens': ragged(4, 4, 4)}, 3, id='ragged-of-one-length'),
    pytest.param({'tokens': ragged(4, 4, 4)}, 3, id='ragged-of-one-length-alone'),
    pytest.param({'x': rows(3), 'box': [rows(3), rows(3), rows(3), rows(3)]}, 3, id='transposed-by-collate'),
    pytest.param({'image': {'pixels': rows(4, 2, 2), 'name': list('abcd')}, 'label': rows(4)}, 4, id='nested'),
    pytest.param({'x': rows(4), 'temperature': 0.5, 'task': 'qa', 'scale': torch.tensor(2.0)}, 4, id='scalars'),
    pytest.param(ragged(2, 3, 4), 3, id='ragged-rows'),
]


def flat(part: Any) -> list[Any]:
    """The leaves, tensors as lists, for comparison."""
    if isinstance(part, (torch.Tensor, np.ndarray)):
        return [part.tolist()]
    if isinstance(part, dict):
        return [leaf for value in part.values() for leaf in flat(value)]
    if isinstance(part, (list, tuple)):
        return [leaf for value in part for leaf in flat(value)]
    return [part]


@pytest.mark.parametrize(('batch', 'expected'), BATCHES)
def test_rows_are_counted(batch: Any, expected: int) -> None:
    assert count_rows(batch) == expected


@pytest.mark.parametrize(('batch', 'expected'), BATCHES)
@pytest.mark.parametrize('size', [1, 2, 4, 5, 100])
def test_parts_have_all_rows_in_order(batch: Any, expected: int, size: int) -> None:
    parts = split_rows(batch, size)
    assert len(parts) == -(-expected // size)
    assert [count_rows(part, expected=size) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert flat(first_rows(batch, expected, expected)) == flat(batch)
    if len(parts) == 1:
        assert parts[0] is batch
    elif not isinstance(batch, dict):
        return
    else:
        for key, value in batch.items():
            if isinstance(value, torch.Tensor) and value.ndim:
                assert torch.cat([part[key] for part in parts]).equal(value)
            elif isinstance(value, list) and len(value) == expected:
                assert flat([part[key] for part in parts]) == flat(value)
            elif not isinstance(value, (dict, list)):
                assert all(part[key] is value for part in parts)


@pytest.mark.parametrize(
    'batch',
    [
        rows(5, 2),
        {'x': rows(5, 2), 'text': list('abcde')},
        (rows(5), rows(5, 2)),
        ['a', 'b', 'c'],
        {'x': rows(4), 'k': 2},
    ],
)
def test_batches_that_composer_can_split_are_split_as_it_does(batch: Any) -> None:
    ours, theirs = split_rows(batch, 2), default_split_batch(batch, 2)
    assert [flat(part) for part in ours] == [flat(part) for part in theirs]


def test_transposed_columns_are_cut_across() -> None:
    batch = {'x': rows(3), 'box': [rows(3), rows(3) * 10]}
    assert [flat(part) for part in split_rows(batch, 2)] == [[[0, 1], [0, 1], [0, 10]], [[2], [2], [20]]]


def test_types_survive() -> None:
    first, _ = split_rows(Pair(rows(4), (rows(4), ['a', 'b', 'c', 'd'])), 2)
    assert isinstance(first, Pair)
    assert isinstance(first.y, tuple)
    assert first.y[1] == ['a', 'b']


def test_tensors_are_views() -> None:
    batch = {'x': rows(4)}
    split_rows(batch, 2)[1]['x'][0] = 77
    assert batch['x'][2] == 77


def test_the_expected_number_decides_where_the_shape_does_not() -> None:
    batch = ragged(4, 4, 4)
    assert count_rows(batch) == 4  # as Composer reads a list of tensors: columns
    assert count_rows(batch, expected=3) == 3


@pytest.mark.parametrize('batch', [{'x': rows(3), 'y': rows(4)}, object(), {'x': 1}, torch.tensor(1)])
def test_a_batch_without_a_number_of_rows_is_refused(batch: Any) -> None:
    with pytest.raises(ConfigError, match='get_num_samples_in_batch'):
        count_rows(batch)


@pytest.mark.parametrize('size', [0.5, 0, 2.5])
def test_a_microbatch_size_that_is_no_number_of_rows_is_refused(size: float) -> None:
    with pytest.raises(ConfigError, match='whole number'):
        split_rows(rows(4), size)


@pytest.mark.parametrize(
    ('batch', 'column', 'expected'),
    [
        ({'input_ids': rows(3, 7)}, None, 21),
        ({'tokens': rows(3, 7)}, None, 21),
        ({'tokens': ragged(4, 1)}, None, 5),
        ({'tokens': rows(3)}, None, 0),
        ({'x': rows(3, 7)}, None, 0),
        ({'x': rows(3, 7), 'input_ids': rows(3, 2)}, 'x', 21),
        ({'x': [[1, 2], [3]]}, 'x', 3),
        ({'tokens': ['some text', 'more']}, None, 0),
        (rows(3, 7), None, 0),
    ],
)
def test_tokens_are_counted(batch: Any, column: str | None, expected: int) -> None:
    assert count_composer_tokens(batch, column) == expected


def test_a_token_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'toks'"):
        count_composer_tokens({'tokens': rows(3, 7)}, 'toks')
