"""``headrace warm``: the cache of a node before its run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.cli import main

SHARDS = 8


@pytest.fixture
def config(tmp_path):
    with MDSWriter(out=str(tmp_path / 'remote'), columns={'x': 'ndarray:uint8:1000'}, size_limit=41_000) as writer:
        writer.write_batch({'x': np.zeros((40 * SHARDS, 1000), np.uint8)})
    assert len(list((tmp_path / 'remote').glob('shard*'))) == SHARDS

    def make(**train):
        given = {'remote': str(tmp_path / 'remote'), 'local': str(tmp_path / 'cache'), **train}
        path = tmp_path / 'train.yaml'
        path.write_text(json.dumps({'global_batch_size': 8, 'train': given}))
        return str(path)

    return make


@pytest.fixture
def cached(tmp_path):
    return lambda: sorted(path.name for path in (tmp_path / 'cache').glob('shard*'))


@pytest.fixture
def warm(capsys):
    def run(*arguments):
        assert main(['warm', *arguments, '--json']) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_the_whole_cache_is_filled_once(config, warm, cached):
    first = warm(config())
    assert (first['shards'], first['fetched'], first['is_full']) == (SHARDS, SHARDS, False)
    assert len(cached()) == SHARDS
    assert warm(config())['fetched'] == 0


def test_a_dataset_needs_no_configuration(config, warm, cached, tmp_path, capsys):
    config()
    remote, cache = str(tmp_path / 'remote'), str(tmp_path / 'cache')
    assert warm(remote, '--local', cache, '--batch-size', '40', '--batches', '3')['fetched'] == 3
    report = warm(remote, '--local', cache, '--nodes', '2', '--ranks', '2', '--node', '1')
    assert (report['shards'], report['fetched']) == (SHARDS, SHARDS - 3)
    assert len(cached()) == SHARDS
    assert main(['warm', remote]) == 1
    assert 'add --local DIR' in capsys.readouterr().err
    assert main(['warm', config(), '--local', cache]) == 1
    assert 'write train.local=' in capsys.readouterr().err


def test_the_first_batches_need_the_first_shards(config, warm, cached):
    assert warm(config(), '--batches', '5')['fetched'] == 1  # 40 samples
    assert cached() == ['shard.00000.mds']


def test_each_node_has_its_own_shards(config, warm, cached):
    path = config(num_canonical_nodes=2)
    first = warm(path, '--ranks', '2', '--nodes', '2', '--node', '0')
    before = cached()
    second = warm(path, '--ranks', '2', '--nodes', '2', '--node', '1')
    assert (first['shards'], second['shards']) == (SHARDS / 2, SHARDS / 2)
    assert second['fetched'] == SHARDS / 2
    assert len(before) == SHARDS / 2
    assert len(cached()) == SHARDS


def test_a_limit_keeps_what_is_needed_first(config, warm, cached):
    report = warm(config(cache_limit=170_000), '--jobs', '1')
    assert report['is_full']
    assert cached() == [f'shard.{number:05}.mds' for number in range(report['fetched'])]
    assert 0 < report['bytes'] <= 170_000


def test_wrong_nodes_are_refused(config, capsys):
    assert main(['warm', config(), '--node', '1']) == 1
    assert '--node counts from 0' in capsys.readouterr().err
