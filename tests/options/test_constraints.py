"""Constraints, annotations, and the numbers of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from headrace.options.constraints import AtLeast, MoreThan, OneOf, choices_of, plain, unwrap


@pytest.mark.parametrize('hint', [Annotated[int | None, AtLeast(1)], Annotated[int, AtLeast(1)] | None])
def test_an_annotation_is_the_same_in_any_nesting(hint: Any) -> None:
    assert unwrap(hint) == (int, AtLeast(1))


def test_an_annotation_of_several_types_keeps_them() -> None:
    assert unwrap(int | str | None) == (int | str, None)
    assert unwrap(Sequence[str] | None) == (Sequence[str], None)


def test_choices_are_those_of_the_annotation() -> None:
    assert choices_of(Literal['a', 'b'], None) == ('a', 'b')
    assert choices_of(str, OneOf(('c',))) == choices_of(str, OneOf(lambda: ('c',))) == ('c',)
    assert choices_of(str, None) == ()


def test_bounds() -> None:
    assert AtLeast(1).holds(1)
    assert not MoreThan(1).holds(1)
    assert not MoreThan(1).holds(float('nan'))


@pytest.mark.parametrize(
    ('given', 'wanted'),
    [
        (np.int64(4), 4),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_('mb'), 'mb'),
        (np.array(4), 4),
        (torch.tensor(4), 4),
        ([[np.int64(0), np.int64(8)]], [[0, 8]]),
        ({'budget': np.int64(64), 'sum': np.bool_(False)}, {'budget': 64, 'sum': False}),
        ('text', 'text'),
        (None, None),
    ],
    ids=repr,
)
def test_scalars_become_pythons_numbers(given: Any, wanted: Any) -> None:
    found = plain(given)
    assert found == wanted
    assert type(found) is type(wanted)
    assert all(type(value) in (int, str, bool) for value in (found.values() if isinstance(found, dict) else ()))


def test_arrays_stay() -> None:
    array = np.arange(3)
    assert plain(array) is array
