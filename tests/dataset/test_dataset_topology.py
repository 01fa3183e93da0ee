"""The topology that a launcher or a device mesh describes."""

from __future__ import annotations

import pytest
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology, topology_of_mesh
from headrace.dataset.topology import detect_topology
from headrace.errors import TopologyError
from tests.support.trainers.fake_world import fake_world

TORCHRUN = {'RANK': '5', 'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '4'}


def test_the_topology_comes_from_the_launcher():
    found = detect_topology(environ=TORCHRUN)
    assert (found.rank, found.world_size, found.num_nodes) == (5, 8, 2)
    found = detect_topology(environ={'SLURM_PROCID': '3', 'SLURM_NTASKS': '4', 'SLURM_NTASKS_PER_NODE': '2(x2)'})
    assert (found.rank, found.world_size, found.num_nodes) == (3, 4, 2)
    assert detect_topology(environ={}).world_size == 1
    with pytest.raises(TopologyError, match="RANK must hold a whole number.*'two'"):
        detect_topology(environ=TORCHRUN | {'RANK': 'two'})


def topologies(shape: tuple[int, ...], names: tuple[str, ...] | None, **options) -> list[Topology]:
    world_size = 1
    for size in shape:
        world_size *= size
    found = []
    for rank in range(world_size):
        with fake_world(rank, world_size):
            found.append(topology_of_mesh(init_device_mesh('cpu', shape, mesh_dim_names=names), **options))
    return found


@pytest.mark.parametrize(
    ('shape', 'names', 'replicas'),
    [
        ((4,), ('dp',), [0, 1, 2, 3]),
        ((4,), ('tp',), [0, 0, 0, 0]),
        ((2, 2), ('data_parallel', 'tensor_parallel'), [0, 0, 1, 1]),
        ((2, 2), ('dp_replicate', 'dp_shard'), [0, 1, 2, 3]),
        ((2, 3), ('pp', 'dp'), [0, 1, 2, 0, 1, 2]),
        ((2, 2, 2), ('dp_replicate', 'tp', 'dp_shard'), [0, 1, 0, 1, 2, 3, 2, 3]),
        ((2, 2, 2), ('pp', 'dp', 'tp'), [0, 0, 1, 1, 0, 0, 1, 1]),
    ],
)
def test_ranks_that_differ_in_no_data_dimension_are_one_replica(shape, names, replicas) -> None:
    found = topologies(shape, names)
    assert [topology.replica for topology in found] == replicas
    assert [topology.rank for topology in found] == list(range(len(replicas)))
    assert {topology.replicas for topology in found} == {max(replicas) + 1}


def test_consecutive_peers_are_the_plain_topology() -> None:
    assert topologies((2, 2), ('dp', 'cp'), num_nodes=2) == [
        Topology(rank=rank, world_size=4, num_nodes=2, replication=2) for rank in range(4)
    ]


def test_dimensions_of_other_names_are_asked_for() -> None:
    with pytest.raises(TopologyError, match=r"\['experts'\] may be or not.*data_dims"):
        topologies((2, 2), ('experts', 'tp'))
    found = topologies((2, 2), ('experts', 'tp'), data_dims=['experts'])
    assert [topology.replica for topology in found] == [0, 0, 1, 1]
    with pytest.raises(TopologyError, match='mesh_dim_names'):
        topologies((2, 2), None)
    with pytest.raises(TopologyError, match='not all dimensions'):
        topologies((2, 2), ('dp', 'tp'), data_dims=['data'])


def test_a_rank_outside_of_the_mesh_is_refused() -> None:
    with fake_world(3, 4), pytest.raises(TopologyError, match='not a rank of the device mesh'):
        topology_of_mesh(DeviceMesh('cpu', [0, 1], mesh_dim_names=('dp',)))


def test_peers_anywhere_read_the_same_and_replicas_all(tmp_path) -> None:
    with MDSWriter(out=str(tmp_path), columns={'id': 'int'}, size_limit=200) as writer:
        for number in range(48):
            writer.write({'id': number})
    read = []
    for topology in topologies((2, 2, 2), ('pp', 'dp', 'tp'), num_nodes=2):
        data = StreamingDataset(local=str(tmp_path), shuffle=True, topology=topology)
        read.append([batch['id'].tolist() for batch in StreamingDataLoader(data, batch_size=4)])
    assert read[0] == read[1] == read[4] == read[5]
    assert read[2] == read[3] == read[6] == read[7]
    assert sorted(i for batch in read[0] + read[2] for i in batch) == list(range(48))
