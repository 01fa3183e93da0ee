"""Ranks as each strategy starts and numbers them, in real processes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from test_lightning_processes import launch_on_nodes, run_forked

from headrace import MDSWriter
from tests.support import support_file
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import EPOCHS, Run, dataset
from tests.support.trainers.ranks import run_alone

pytestmark = [pytest.mark.filterwarnings('ignore')]


def test_a_mesh_of_data_and_tensor_parallel_ranks_is_resumed(mixes, tmp_path):
    first = Run(
        name='first',
        out=str(tmp_path),
        streams=mixes['even'],
        strategy='tensor_parallel',
        devices=4,
        data_parallel=2,
        batch_size=4,
        every_steps=5,
        crash_at=7,
    )
    checkpoint = first.checkpoints / 'step5.ckpt'
    second = dataclasses.replace(first, name='second', crash_at=None, checkpoint=str(checkpoint))
    run_forked([first, second], tmp_path, ranks=4)
    for run in (first, second):
        ranks = records(run)
        assert ranks[0] == ranks[1]
        assert ranks[2] == ranks[3]
        Path(tmp_path, f'{run.name}.rank2.jsonl').replace(Path(tmp_path, f'{run.name}.rank1.jsonl'))
    replicas = [dataclasses.replace(run, devices=2) for run in (first, second)]
    verdict = judge([(replicas[0], checkpoint), (replicas[1], None)])
    assert verdict.is_exact, verdict
    assert verdict.epochs == EPOCHS


def test_a_notebook_forks_its_ranks_after_a_cell_has_read_data(mixes, tmp_path):
    first = Run(
        name='first',
        out=str(tmp_path),
        streams=mixes['even'],
        strategy='ddp_notebook',
        devices=2,
        workers=1,
        batch_size=4,
        every_steps=5,
        trainer={'max_steps': 7},
    )
    checkpoint = first.checkpoints / 'step5.ckpt'
    second = dataclasses.replace(first, name='second', checkpoint=str(checkpoint), trainer={})
    cells = [json.dumps(dataclasses.asdict(run)) for run in (first, second)]
    run_alone('lightning', support_file('trainers/notebook_run.py'), *cells, folder=tmp_path)
    verdict = judge([(first, checkpoint), (second, None)])
    assert verdict.is_exact, verdict
    assert verdict.epochs == EPOCHS


# -- nodes ------------------------------------------------------------------------------------------------------------

SHARDS = {'a': 160, 'b': 96}  # 64 for each canonical node, so that two nodes have two of them each


@pytest.fixture
def remote(tmp_path: Path) -> dict[str, str]:
    """Two streams of many small shards, four samples each; `id` is the number of a sample in the mix."""
    first, streams = 0, {}
    for name, shards in SHARDS.items():
        streams[name] = str(tmp_path / 'remote' / name)
        columns = {'id': 'int', 'row': 'ndarray:float32:4'}
        with MDSWriter(out=streams[name], columns=columns, size_limit=320) as writer:
            for number in range(first, first + 4 * shards):
                writer.write({'id': number, 'row': np.full(4, number, np.float32)})
        first += 4 * shards
    return streams


def fetched(run: Run) -> list[set[tuple[str, str]]]:
    """The shards in each node's cache, by stream and file."""
    assert run.cache is not None
    return [
        {(path.parent.name, path.name) for path in Path(run.cache, f'node{node}').glob('*/shard.*.mds')}
        for node in range(2)
    ]


def used(run: Run) -> list[set[tuple[str, str]]]:
    """The shards of the samples that each node trained."""
    data = dataset(run)
    found = []
    ranks = records(run)
    for node in (ranks[:2], ranks[2:]):
        ids = np.array([i for rank in node for record in rank for i in record['ids']])
        places = [data.place(shard) for shard in np.unique(data.locate(ids)[0]).tolist()]
        found.append({(stream, file) for stream, _, file in places})
    return found


@pytest.mark.slow
def test_each_node_fetches_the_shards_that_it_trains_on(remote, tmp_path):
    """Two nodes of two ranks, each node with a cache of its own, as on two machines."""
    common = {
        'out': str(tmp_path),
        'streams': remote,
        'devices': 2,
        'strategy': 'ddp',
        'workers': 1,
        'every_steps': 10,
        'trainer': {'num_nodes': 2, 'max_epochs': 1},
    }
    whole = Run(name='whole', cache=str(tmp_path / 'whole-cache'), **common)
    first = Run(name='first', cache=str(tmp_path / 'first-cache'), crash_at=13, **common)
    checkpoint = first.checkpoints / 'step10.ckpt'
    second = Run(name='second', cache=str(tmp_path / 'second-cache'), checkpoint=str(checkpoint), **common)
    launch_on_nodes([whole, first, second], tmp_path, nodes=2, ranks=2)

    alike = [dataclasses.replace(run, devices=4, cache=None) for run in (whole, first, second)]
    for verdict in (judge([(alike[0], None)]), judge([(alike[1], checkpoint), (alike[2], None)])):
        assert verdict.is_exact, verdict
        assert (verdict.epochs, verdict.position) == (1, 0)
    everything = {(name, f'shard.{n:05}.mds') for name, shards in SHARDS.items() for n in range(shards)}
    zero, one = fetched(whole)
    assert zero | one == everything
    # A stream's shards are in one line, which is cut into a part for each of four canonical nodes.
    assert len(zero & one) <= 3 * len(SHARDS)
    assert [zero, one] == used(alike[0])
    assert fetched(second) == used(alike[2])
    assert all(rest <= all_ for rest, all_ in zip(fetched(second), (zero, one), strict=True))
