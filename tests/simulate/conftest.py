"""Fixtures of simulate tests."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.mixing import load_config
from headrace.simulate import Conditions, simulate
from tests.support.datasets.simulated import SAMPLES, SHARDS
from tests.support.datasets.tuned import TUNED_SAMPLES


@pytest.fixture
def simulated_remote(tmp_path):
    folder = tmp_path / 'remote'
    with MDSWriter(out=str(folder), columns={'x': 'ndarray:uint8:1000'}, size_limit=41_000) as writer:
        writer.write_batch({'x': np.zeros((SAMPLES, 1000), np.uint8)})
    assert len(list(folder.glob('shard*'))) == SHARDS
    return folder


@pytest.fixture
def simulated_run(simulated_remote, tmp_path):
    """A simulation of a loader over the shards, with conditions under which nothing takes time unless it is given."""

    def run_it(*, loader=None, **conditions):
        config = {'global_batch_size': 8, 'train': {'remote': str(simulated_remote), 'local': str(tmp_path / 'cache')}}
        config['train'] |= {'loader': {'num_workers': conditions.pop('workers', 0)}, **(loader or {})}
        given = {
            'bandwidth': math.inf,
            'latency': 0.0,
            'read_seconds': 0.0,
            'step_seconds': 0.0,
            'start_seconds': 0.0,
            'request_seconds': 0.0,
            'publish_seconds': 0.0,
            'receive_seconds': 0.0,
            **conditions,
        }
        return simulate(load_config(config).train, Conditions(**given))

    return run_it


@pytest.fixture
def tuned_config(tmp_path):
    with MDSWriter(out=str(tmp_path / 'remote'), columns={'x': 'ndarray:uint8:100'}, size_limit=27_000) as writer:
        writer.write_batch({'x': np.zeros((TUNED_SAMPLES, 100), np.uint8)})

    def make(**train):
        given = {'remote': str(tmp_path / 'remote'), 'local': str(tmp_path / 'cache'), **train}
        path = tmp_path / 'train.yaml'
        path.write_text(json.dumps({'global_batch_size': 64, 'train': given}))
        return path

    return make
