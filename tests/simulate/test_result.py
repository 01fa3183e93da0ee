"""Conditions of a simulated run."""

from __future__ import annotations

import json
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


def test_steps_without_time_are_figures_of_json(simulated_run, simulated_remote):
    simulated = simulated_run(loader={'remote': None, 'local': str(simulated_remote)})
    assert 'inf samples/s' in str(simulated)
    assert json.loads(json.dumps(simulated.to_json(), allow_nan=False))['samples_per_second'] is None
