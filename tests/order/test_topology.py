from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import TopologyError
from headrace.order import Topology

CASES = json.loads((Path(__file__).parents[1] / 'data/order/replicate_world.json').read_text())['cases']


@pytest.mark.parametrize('case', CASES, ids=lambda case: case['id'])
def test_parallel_world_is_mosaicmls(case: dict) -> None:
    args = case['args']
    world_size = args['num_nodes'] * args['ranks_per_node']
    rank = args['worker'] // args['workers_per_rank']

    replication = 1 if args['replication'] is None else args['replication']

    def topology() -> Topology:
        return Topology(rank=rank, world_size=world_size, num_nodes=args['num_nodes'], replication=replication)

    if 'raises' in case:
        with pytest.raises(TopologyError):
            topology()
        return
    expected, t = case['replicated'], topology()
    assert (t.node, t.nodes) == (expected['node'], expected['num_nodes'])
    assert (t.replica, t.replicas) == (expected['rank'], expected['num_ranks'])
    assert (t.local_replica, t.replicas_per_node) == (expected['rank_of_node'], expected['ranks_per_node'])


@pytest.mark.parametrize(
    ('arguments', 'named'),
    [
        ({'rank': 4, 'world_size': 4}, 'rank 4'),
        ({'rank': -1}, 'rank -1'),
        ({'world_size': 0}, 'world_size'),
        ({'world_size': 6, 'num_nodes': 4}, 'num_nodes 4'),
        ({'world_size': 6, 'replication': 4}, 'replication 4'),
        ({'replication': True}, 'bool'),
        ({'world_size': 2.0}, 'float'),
    ],
)
def test_impossible_worlds_are_refused_with_the_number(arguments: dict, named: str) -> None:
    with pytest.raises(TopologyError, match=named):
        Topology(**arguments)
