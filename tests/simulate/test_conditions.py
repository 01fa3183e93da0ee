"""Conditions of a simulated run."""

from __future__ import annotations

import math

import pytest

from headrace.errors import ConfigError
from headrace.simulate import Conditions


@pytest.mark.parametrize(
    'wrong', [{'ranks': 0}, {'bandwidth': math.nan}, {'latency': -1}, {'latency': math.inf}, {'ranks': 3, 'nodes': 2}]
)
def test_impossible_conditions_are_refused(wrong):
    with pytest.raises(ConfigError, match='must'):
        Conditions(**wrong)
