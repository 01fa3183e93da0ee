"""numpy's random numbers, and our own implementation of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order import generators
from headrace.order.generators import draws_are_frozen, random_stream
from headrace.order.pcg import PortableGenerator

seeds = st.one_of(st.integers(0, 10), st.integers(0, 2**200))
widths = st.sampled_from([1, 2, 100, 2**32 - 1, 2**32, 2**32 + 1, 2**50])
call = st.one_of(
    st.tuples(st.just('permutation'), st.integers(0, 200)),
    st.tuples(st.just('shuffle'), st.integers(0, 200)),
    st.tuples(st.just('random'), st.integers(0, 20)),
    st.tuples(st.just('integers'), st.integers(0, 1000), widths),
    st.tuples(st.just('choice'), st.sampled_from([1, 50, 10_000, 10_001]), st.floats(0, 1)),
)  # fmt: skip


def drawn(stream, name, *arguments):
    if name == 'shuffle':
        array = np.arange(arguments[0])
        stream.shuffle(array)
        return array
    if name == 'integers':
        low, width = arguments
        return [stream.integers(low, low + width), *stream.integers(low, low + width, 3)]
    if name == 'choice':
        return stream.choice(arguments[0], int(arguments[0] * arguments[1] ** 4), replace=False)
    return getattr(stream, name)(*arguments)


@given(seeds, st.lists(call, max_size=8))
def test_our_numbers_are_numpys_in_any_sequence_of_calls(seed, calls):
    ours, numpys = PortableGenerator(seed), np.random.default_rng(seed)
    for name, *arguments in calls:
        assert np.array_equal(drawn(ours, name, *arguments), drawn(numpys, name, *arguments)), (name, arguments)


def test_both_draw_the_frozen_numbers():
    assert draws_are_frozen(np.random.default_rng)
    assert draws_are_frozen(PortableGenerator)


class Changed(PortableGenerator):
    """A future numpy that shuffles from the other end."""

    def permutation(self, n):
        return super().permutation(n)[::-1]


class Removed:
    def __init__(self, seed):
        pass


@pytest.mark.parametrize('other', [Changed, Removed])
def test_a_numpy_that_draws_other_numbers_is_not_used(monkeypatch, other):
    before = random_stream(3).permutation(9)
    monkeypatch.setattr(np.random, 'default_rng', other)
    generators._maker.cache_clear()
    try:
        assert not draws_are_frozen(np.random.default_rng)
        stream = random_stream(3)
        assert type(stream) is PortableGenerator
        assert np.array_equal(stream.permutation(9), before)
    finally:
        generators._maker.cache_clear()


def test_wrong_arguments_raise_as_numpys():
    with pytest.raises(ConfigError, match='shuffle_seed must be at least 0, got -1'):
        random_stream(-1)
    for make in (np.random.default_rng, PortableGenerator):
        with pytest.raises(ValueError):
            make(-1)
        with pytest.raises(ValueError):
            make(0).integers(3, 3)
        with pytest.raises(ValueError):
            make(0).choice(3, 4, replace=False)
