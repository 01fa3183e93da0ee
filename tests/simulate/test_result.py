"""Figures of a simulated run."""

from __future__ import annotations

import json


def test_steps_without_time_are_figures_of_json(simulated_run, simulated_remote):
    simulated = simulated_run(loader={'remote': None, 'local': str(simulated_remote)})
    assert 'inf samples/s' in str(simulated)
    assert json.loads(json.dumps(simulated.to_json(), allow_nan=False))['samples_per_second'] is None
