"""numpy's random numbers, of which some are frozen."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ConfigError, MissingDependencyError
from headrace.order.random.numpy_streams import draws_are_frozen, random_stream


def test_the_installed_numpy_draws_the_frozen_numbers():
    assert draws_are_frozen(np.random.default_rng)
    assert np.array_equal(random_stream(3).permutation(9), np.random.default_rng(3).permutation(9))


class Changed(np.random.Generator):
    """A future numpy that shuffles from the other end."""

    def __init__(self, seed):
        super().__init__(np.random.PCG64(seed))

    def permutation(self, x, axis=0):
        return super().permutation(x, axis)[::-1]


class Removed:
    def __init__(self, seed):
        pass


@pytest.mark.parametrize('other', [Changed, Removed])
def test_a_numpy_that_draws_other_numbers_is_refused(monkeypatch, other):
    assert not draws_are_frozen(other)
    monkeypatch.setattr(np.random, 'default_rng', other)
    with pytest.raises(MissingDependencyError, match='Install a numpy from 1.26 to 2.4'):
        random_stream(3)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match='shuffle_seed must be at least 0, got -1'):
        random_stream(-1)
