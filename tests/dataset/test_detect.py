"""The topology from a launcher's environment."""

from __future__ import annotations

import pytest

from headrace.dataset.detect import detect_topology
from headrace.errors import TopologyError

TORCHRUN = {'RANK': '5', 'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '4'}


def test_the_topology_comes_from_the_launcher():
    found = detect_topology(environ=TORCHRUN)
    assert (found.rank, found.world_size, found.num_nodes) == (5, 8, 2)
    found = detect_topology(environ={'SLURM_PROCID': '3', 'SLURM_NTASKS': '4', 'SLURM_NTASKS_PER_NODE': '2(x2)'})
    assert (found.rank, found.world_size, found.num_nodes) == (3, 4, 2)
    assert detect_topology(environ={}).world_size == 1
    with pytest.raises(TopologyError, match="RANK must hold a whole number.*'two'"):
        detect_topology(environ=TORCHRUN | {'RANK': 'two'})
