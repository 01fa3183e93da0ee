"""A run in simulated time: from the true plan and the true prefetch, without data, GPUs or a network.

`run.simulate` is the public function. `world` has the clock and the link, `node` a machine's cache, its fetches and the
ranks that make batches. `result` has the conditions and the figures, and `page` draws them. `tune` searches over
simulated runs for the settings under which a run waits little.
"""

from headrace.simulate.result import Conditions, SimulatedRun
from headrace.simulate.run import simulate
from headrace.simulate.tune import Tuning, tune

__all__ = ['Conditions', 'SimulatedRun', 'Tuning', 'simulate', 'tune']
