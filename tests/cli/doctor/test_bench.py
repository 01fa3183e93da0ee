"""``headrace bench``: figures of a loader by a clock of the test, and the sentence on its limit."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.cli import main
from headrace.cli.doctor.bench import Rate, bench, limit_of
from headrace.errors import ConfigError
from headrace.mixing import load_config

RATE = Rate(0, 100, 800, 10.0, 0.5, 0.01, 0.02, 0.05, 8_000_000, 4_000_000, 0.0)


@pytest.fixture
def data(tmp_path):
    with MDSWriter(out=str(tmp_path / 'data'), columns={'x': 'ndarray:uint8:100'}) as writer:
        writer.write_batch({'x': np.zeros((64, 100), np.uint8)})
    return tmp_path / 'data'


def loader(data, **train):
    return load_config({'global_batch_size': 8, 'train': {'local': str(data), **train}}).train


def test_the_first_batch_counts_in_no_rate(data):
    ticks = itertools.count()  # each look at the clock takes a second
    rate = bench(loader(data), workers=0, seconds=10, clock=lambda: float(next(ticks)))
    assert (rate.batches, rate.first_batch_seconds, rate.seconds) == (11, 1.0, 10.0)  # and more than one epoch of 8
    assert (rate.samples, rate.samples_per_second) == (80, 8.0)
    assert (rate.batch_bytes, rate.bytes_per_second) == (8000, 800.0)
    assert rate.wait_p50 == rate.wait_p99 == 1.0


def test_a_loader_without_batches_is_refused(data):
    with pytest.raises(ConfigError, match='has no batch'):
        bench(loader(data, fraction=[0, 0.01], remainder='drop'), workers=0, seconds=1)


def test_the_limit_is_named(data):
    config = loader(data)
    waiting = dataclasses.replace(RATE, network_share=0.8)
    assert limit_of(config, [waiting]).startswith('The network is the limit: 80%')
    opening = dataclasses.replace(waiting, bytes_downloaded=0)  # a busy machine is late with shards that are there
    assert limit_of(config, [opening]).startswith('The processors are the limit')
    alone = limit_of(config, [dataclasses.replace(RATE, workers=0)])
    assert 'reading of values' in alone
    assert alone.endswith('try more workers: --workers 0,2.')
    double = dataclasses.replace(RATE, workers=2, samples=1600)
    assert 'with 2 workers it gives 2.0 times as much' in limit_of(config, [RATE, double])
    half = dataclasses.replace(RATE, workers=2, samples=400)
    assert '2 workers give no more' in limit_of(config, [RATE, half])


def test_the_command(data, tmp_path, capsys):
    path = tmp_path / 'train.yaml'
    path.write_text(f'global_batch_size: 8\ntrain: {{remote: {data}, local: {tmp_path}/cache}}\n')
    assert main(['bench', str(path), '--workers', '0', '--seconds', '0.01', '--cold', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['rates'][0]['bytes_downloaded'] > 6400
    assert not (tmp_path / 'cache').exists()
    assert main(['bench', str(data), '--workers', '0', '--seconds', '0.01', '--batch-size', '4']) == 0
    assert 'the limit: reading of values' in capsys.readouterr().out
    assert main(['bench', str(path), '--workers', 'some']) == 1
    for seconds in ('0', 'inf', 'nan'):
        assert main(['bench', str(path), '--seconds', seconds]) == 1
        assert '--seconds must be a number of seconds, more than 0' in capsys.readouterr().err


def test_keys_go_over_a_dataset(data, capsys):
    assert main(['bench', str(data), 'train.no_such_key=1', '--workers', '0', '--seconds', '0.01']) == 1
    assert 'train.no_such_key' in capsys.readouterr().err
    assert main(['bench', str(data), 'train.fraction=[0, 0.01]', 'train.remainder=drop', '--seconds', '0.01']) == 1
    assert 'has no batch' in capsys.readouterr().err


def test_what_is_no_data_is_refused(data, capsys):
    assert main(['bench', 'no_such.yaml']) == 1
    assert 'no_such.yaml does not exist' in capsys.readouterr().err
    assert main(['bench', data.as_uri(), '--workers', '0', '--seconds', '0.01', '--batch-size', '4', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['rates'][0]['batches'] > 1


def test_it_is_one_rank_whatever_the_configuration_says(data):
    assert bench(loader(data, replication=2), workers=0, seconds=0.01).samples > 0
