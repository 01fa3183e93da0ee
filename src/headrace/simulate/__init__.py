"""A run in simulated time: from the true plan and the true prefetch, without data, GPUs or a network.

`simulate` is the public function. `world` has the clock and the link, `node` a machine's cache and its fetches.
`reader` has the processes that make batches. `result` has the figures, and `page` draws them. `tune` searches over
simulated runs for the `settings` under which a run waits little.
"""

from headrace.simulate.conditions import Conditions
from headrace.simulate.result import SimulatedRun
from headrace.simulate.run import simulate
from headrace.simulate.tune import Tuning, tune

__all__ = ['Conditions', 'SimulatedRun', 'Tuning', 'simulate', 'tune']
