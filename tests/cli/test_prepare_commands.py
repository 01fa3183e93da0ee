"""Commands before a run take every configuration that trains, or say at once in one sentence that they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.cli import main
from headrace.mixing import build_loader, load_config

COST = {'cost': 'length'}
PACKING = {'sequence_length': 16, 'column': 'tokens'}
POINTS = [{'at': 0, 'proportions': {'a': 1}}, {'at': 100, 'proportions': {'b': 1}, 'change': 'linear'}]

TRAINS: dict[str, dict[str, Any]] = {
    'plain': {},
    'in place': {'streams': {'a': {'local': 'a', 'remote': None}}},
    'jsonl': {'streams': {'j': {'format': 'jsonl'}}},
    'jsonl in place': {'streams': {'j': {'local': 'j', 'remote': None}}},
    'packing': {'packing': PACKING, 'skip': [['1doc', '3doc']]},
    'packing of streams': {
        'packing': PACKING,
        'skip': [[8, 16]],
        'streams': {'a': {'packing': {'column': 'tokens'}}, 'b': {}},
    },
    'packing, a whole pass': {'packing': {**PACKING, 'sequences_per_epoch': 'all'}},
    'packing, shares of tokens': {
        'packing': {**PACKING, 'weights_count': 'tokens'},
        'streams': {'a': {'proportion': 1}, 'b': {'proportion': 3}},
    },
    'packing, a batch of each device': {'packing': PACKING, 'global_batch_size': None, 'device_batch_size': 4},
    'growth': {'on_growth': 'wait', 'growth_wait': 900},
    'growth by bucket': {'on_growth': 'delta', 'bucket': 2, **COST},
    'batch_cost': {'batch_cost': 400, 'shuffle': True, **COST},
    'balance': {'balance': 2, 'loss_weight': 'cost', **COST},
    'mixture': {'streams': {'a': {'proportion': 1}, 'b': {'proportion': 2}}, 'shuffle': True},
    'decisions': {'streams': {'a': {'proportion': 1}, 'b': {'proportion': 2}}, 'shuffle': True, 'decisions': 'd.json'},
    'schedule': {'streams': {'a': {}, 'b': {}}, 'schedule': POINTS, 'shuffle': True},
    'device_per_stream': {'streams': {'a': {}, 'b': {}}, 'batching_method': 'device_per_stream', 'shuffle': True},
    'py1e': {'shuffle': True, 'shuffle_algo': 'py1e'},
    'where': {'where': {'length': {'at_least': 3}}},
    'peers': {'peers': {}, 'cache_limit': '30kb'},
    'peers by address': {'peers': {'hosts': ['127.0.0.1', '127.0.0.2']}},
    'uneven': {'uneven': 'pad', 'remainder': 'exact'},
    'replication': {'replication': 2},
    'skip': {'skip': [[8, 16], ['3ba', '4ba']]},
    'workers': {'loader': {'num_workers': 2, 'persistent_workers': True, 'mark_streams': True}},
}
"""Loaders of trainings that run."""

COMMANDS = {
    'warm': ['--ranks', '2', '--nodes', '2', '--node', '1'],
    'bench': ['--workers', '0', '--seconds', '0.01'],
    'measure': ['--cost', 'length'],
    'simulate': ['--batches', '4', '--ranks', '4', '--nodes', '2'],
    'tune': ['--batches', '4', '--ranks', '4', '--nodes', '2', '--step-seconds', '9', '--wait', '60%'],
}
"""Commands, and options with which they end with 0."""

REFUSED = {('simulate', 'packing'), ('tune', 'packing')}
"""Commands and the keys of loaders that they take with another option only."""


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('prepare')
    columns = {'id': 'int', 'length': 'int', 'tokens': 'ndarray:int32'}
    for name in 'ab':
        with MDSWriter(out=str(root / name), columns=columns, size_limit=4000) as writer:
            for number in range(96):
                writer.write({'id': number, 'length': number % 7 + 1, 'tokens': np.arange(5, dtype=np.int32)})
    (root / 'j').mkdir()
    (root / 'j' / 'x.jsonl').write_text(''.join(json.dumps({'id': i, 'length': 3}) + '\n' for i in range(96)))
    return root


@pytest.fixture
def written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', 'x' * 16)

    def write(name: str) -> Path:
        train: dict[str, Any] = {'global_batch_size': 8, **TRAINS[name]}
        if 'decisions' in train:
            mixture = load_config(write('mixture')).train
            assert mixture is not None
            loader = build_loader(mixture)
            next(iter(loader))
            decided = [loader.set_proportions({'a': 1, 'b': 1}, by='a test').to_json()]
            (tmp_path / 'd.json').write_text(json.dumps(decided))
            train['decisions'] = str(tmp_path / 'd.json')
        train['streams'] = {
            stream: {'remote': str(folder / stream), 'local': str(tmp_path / stream)}
            | {key: str(folder / value) if key == 'local' else value for key, value in options.items()}
            for stream, options in train.get('streams', {'a': {}}).items()
        }
        path = tmp_path / 'train.yaml'
        path.write_text(json.dumps({'train': train}))
        return path

    return write


@pytest.mark.parametrize('name', TRAINS)
def test_a_configuration_that_trains(written: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(name)
    for command, options in COMMANDS.items():
        status = main([command, str(path), *options])
        output, error = capsys.readouterr()
        if any((command, key) in REFUSED for key in TRAINS[name]):
            assert (status, error.count('\n'), output) == (1, 1, '')
            assert '--documents N' in error
            status = main([command, str(path), *options, '--documents', '16'])
            output, error = capsys.readouterr()
        assert status == 0, f'{command}: {output}{error}'


def test_what_a_command_does_not_take_is_said_at_once(written: Any, tmp_path: Path, capsys: Any) -> None:
    path = written('plain')
    evaluation = tmp_path / 'eval.yaml'
    evaluation.write_text(json.dumps({'eval': json.loads(path.read_text())['train']}))
    for command, options in COMMANDS.items():
        assert main([command, str(evaluation), *options]) == 1
        assert 'Write the section of the loader that you mean as `train`' in capsys.readouterr().err
    assert main(['simulate', str(path), '--documents', '4']) == 1
    assert 'Leave it out' in capsys.readouterr().err
    assert main(['measure', str(path)]) == 1
    assert 'stream a names no `cost`. Add --cost COLUMN' in capsys.readouterr().err
    assert main(['warm', str(written('packing')), '--batches', '2']) == 1
    assert 'Leave it out: then all shards are fetched' in capsys.readouterr().err
    assert main(['warm', str(written('replication'))]) == 1
    assert 'Start a multiple of 2 ranks' in capsys.readouterr().err
    assert main(['warm', str(path), '--ranks', '2']) == 0
