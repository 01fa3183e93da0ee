"""What a loader refuses at construction or at its first batch, `headrace doctor` and `config check` report before.

Each configuration is tried with the loader, with `config check`, which sees no data, and with `doctor`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.cli import main
from headrace.errors import ConfigError, HeadraceError
from headrace.errors.exclusions import EXCLUSIONS
from headrace.mixing import build_loader, load_config
from headrace.order import Topology

PACKED = {'packing': {'sequence_length': 16, 'column': 'tokens'}}
TOKENS = {'packing': {'sequence_length': 16, 'column': 'tokens', 'weights_count': 'tokens'}}
STREAMS = {'streams': {'a': {'proportion': 1}, 'b': {'proportion': 1}}}
NO_WEIGHTS = {'streams': {'a': {}, 'b': {}}}
SCHEDULE = {'schedule': [{'at': 0, 'proportions': {'a': 1, 'b': 1}}], **NO_WEIGHTS}
DECISION = {'at': 0, 'by': 'me', 'digest': 'x', 'what': {'proportions': {'a': 1, 'b': 1}}}
DECIDED = {'decisions': [DECISION], 'shuffle': True, **NO_WEIGHTS}
COST = {'cost': 'length'}

SETTINGS: dict[str, dict[str, Any]] = {
    'bucket, shuffle_algo': {'bucket': 2, 'shuffle_algo': 'py1e', **COST},
    'bucket, batching_method': {'bucket': 2, 'batching_method': 'per_stream', **COST},
    'bucket, cost': {'bucket': 2},
    'bucket, streams of which one has a cost': {'bucket': 2, 'streams': {'a': COST, 'b': {}}},
    'batch_cost, shuffle_algo': {'batch_cost': 900, 'shuffle_algo': 'py1e', **COST},
    'batch_cost, batching_method': {'batch_cost': 900, 'batching_method': 'stratified', **COST},
    'batch_cost, device_per_stream': {'batch_cost': 900, 'batching_method': 'device_per_stream', **COST},
    'batch_cost, cost': {'batch_cost': 900},
    'batch_cost, skip': {'batch_cost': 900, 'skip': [['1ba', '2ba']], **COST},
    'global_batch_size, device_batch_size': {'device_batch_size': 8},
    'uneven, device_batch_size': {'uneven': 'pad', 'device_batch_size': 8, 'global_batch_size': None},
    'batch_cost, global_batch_size': {'batch_cost': {'budget': 900, 'multiple': 3}, **COST},
    'balance, shuffle_algo': {'balance': 1, 'shuffle_algo': 'py1s', **COST},
    'balance, batching_method': {'balance': 1, 'batching_method': 'device_per_stream', **COST},
    'balance, cost': {'balance': 1},
    'balance': {'balance': 11, **COST},
    'loss_weight, cost': {'loss_weight': 'cost'},
    'uneven, shuffle_algo': {'uneven': 'pad', 'shuffle_algo': 'py2s'},
    'uneven, batching_method': {'uneven': 'pad', 'batching_method': 'per_stream'},
    'remainder, shuffle_algo': {'remainder': 'exact', 'shuffle_algo': 'naive'},
    'remainder, batching_method': {'remainder': 'exact', 'batching_method': 'per_stream', **STREAMS},
    'remainder, drop_last': {'remainder': 'exact', 'loader': {'drop_last': True}},
    'schedule, shuffle_algo': {'shuffle_algo': 'py1e', **SCHEDULE},
    'schedule, sampling_method': {'sampling_method': 'fixed', **SCHEDULE},
    'schedule, when_exhausted': {'when_exhausted': 'stop', **SCHEDULE},
    'schedule, weights': {**SCHEDULE, **STREAMS},
    'peers, keep_zip': {'peers': {}, 'keep_zip': True},
    'peers, keep_zip of a stream': {'peers': {}, 'streams': {'a': {'keep_zip': True}, 'b': {}}},
    'decisions, shuffle_algo': {'shuffle_algo': 'py1e', **DECIDED},
    'decisions, schedule': {**DECIDED, **SCHEDULE},
    'decisions, when_exhausted': {'when_exhausted': 'stop', **DECIDED},
    'decisions, sampling_method': {'sampling_method': 'fixed', **DECIDED},
    'decisions, shuffle': {**DECIDED, 'shuffle': False},
    'decisions, packing': {**DECIDED, **PACKED},
    'decisions, on_growth': {**DECIDED, 'on_growth': 'next_pass'},
    'on_growth, packing': {'on_growth': 'next_pass', **PACKED},
    'on_growth, shuffle_algo': {'on_growth': 'next_pass', 'shuffle_algo': 'py1e'},
    'on_growth, sampling_method': {'on_growth': 'next_pass', 'sampling_method': 'fixed'},
    'on_growth, skip': {'on_growth': 'next_pass', 'skip': [['1ba', '2ba']]},
    'on_growth, batching_method': {'on_growth': 'delta', 'batching_method': 'per_stream'},
    'on_growth, schedule': {'on_growth': 'delta', 'schedule': SCHEDULE['schedule'], 'streams': {'a': {}, 'b': {}}},
    'on_growth, epoch_size': {'on_growth': 'delta', 'epoch_size': 32},
    'on_growth, when_exhausted': {'on_growth': 'wait', 'when_exhausted': 'stop'},
    'on_growth, proportion': {'on_growth': 'delta', 'streams': {'a': {'proportion': 1}}},
    'on_growth, choose': {'on_growth': 'delta', 'streams': {'a': {'choose': 8}}},
    'on_growth, repeat': {'on_growth': 'delta', 'streams': {'a': {'repeat': 0.5}}},
    'on_growth, streams': {'on_growth': 'delta', **NO_WEIGHTS},
    'on_growth, subset': {'on_growth': 'delta', 'subset': [[0, 20]]},
    'on_growth, fraction': {'on_growth': 'wait', 'fraction': [0, 0.5]},
    'on_growth, remainder': {'on_growth': 'delta', 'remainder': 'drop'},
    'on_growth, drop_last': {'on_growth': 'delta', 'loader': {'drop_last': True}},
    'packing, bucket': {'bucket': 2, **COST, **PACKED},
    'packing, batch_cost': {'batch_cost': 900, **COST, **PACKED},
    'packing, balance': {'balance': 1, **COST, **PACKED},
    'packing, loss_weight': {'loss_weight': 'cost', **COST, **PACKED},
    'packing, pad': {'loader': {'pad': {'tokens': 0}}, **PACKED},
    'packing, shuffle_algo': {'shuffle_algo': 'py1e', **PACKED},
    'packing, batching_method': {'batching_method': 'per_stream', **PACKED},
    'packing, columns': {'columns': ['id'], **PACKED},
    'packing of a stream alone': {'streams': {'a': PACKED}},
    'packing, on_mixture_change': {
        'packing': {**PACKED['packing'], 'sequences_per_epoch': 'all'},
        'on_mixture_change': 'continue',
    },
    'packing, lanes': {'packing': {**PACKED['packing'], 'sequences_per_epoch': 'all', 'lanes': 4}},
    'packing, sequences_per_epoch': {'packing': {**PACKED['packing'], 'sequences_per_epoch': 6, 'lanes': 4}},
    'packing without a length': {'packing': {'column': 'tokens'}},
    'weights_count, epoch_size': {'epoch_size': 32, **TOKENS, **STREAMS},
    'weights_count, when_exhausted': {'when_exhausted': 'stop', **TOKENS, **STREAMS},
    'weights_count, sampling_method': {'sampling_method': 'fixed', **TOKENS, **STREAMS},
    'weights_count, on_mixture_change': {'on_mixture_change': 'continue', **TOKENS, **STREAMS},
    'weights_count, proportion': {**TOKENS, **NO_WEIGHTS},
    'skip of documents': {'skip': [['1doc', '2doc']]},
    'num_canonical_nodes': {'num_canonical_nodes': 70_000},
    'bucket': {'bucket': 70_000, **COST},
    'device': {'loader': {'device': 'tpu'}},
}
"""Settings that do not go together, whatever the data are."""

DATA: dict[str, dict[str, Any]] = {
    'columns': {'columns': ['id', 'token']},
    'columns of a stream': {'streams': {'a': {}, 'b': {'columns': ['token']}}},
    'cost': {'cost': 'size'},
    'cost, for batches': {'cost': 'size', 'bucket': 2},
    'decode': {'decode': {'image': {'size': 32}}},
    'decode of another type': {'decode': {'id': {'size': 32}}},
    'pad': {'loader': {'pad': {'token': 0}}},
    'pad of another type': {'loader': {'pad': {'id': 0}}},
    'where': {'where': {'lang': ['de']}},
    'where of a stream': {'streams': {'a': {}, 'b': {'where': {'lang': ['de']}}}},
    'subset': {'subset': [[0, 4000]]},
    'format': {'format': 'csv'},
    'cache_limit': {'cache_limit': 1000},
    'num_canonical_nodes, batching_method': {
        'num_canonical_nodes': 3,
        'shuffle': True,
        'batching_method': 'per_stream',
    },
    'sampling_granularity': {'sampling_granularity': 2, 'streams': {'a': {'choose': 10}}},
    'when_exhausted, shuffle_algo': {
        'when_exhausted': 'drop_stream',
        'shuffle_algo': 'py1e',
        'streams': {'a': {'proportion': 9}, 'b': {'proportion': 1}},
    },
    'decisions of another run': DECIDED,
    'packing, no such column': {'packing': {'sequence_length': 16, 'column': 'text'}},
    'packing, tokenizer': {
        'packing': {'sequence_length': 16, 'column': 'tokens', 'tokenizer': {'path': '/nowhere/tokenizer.json'}}
    },
    'packing, more lanes than documents': {'packing': {**PACKED['packing'], 'lanes': 4000}},
    'packing, skip of other documents': {'skip': [['1doc', '4000doc']], **PACKED},
    'loss_weight, a column of that name': {'loss_weight': 'samples', 'streams': {'reserved': {}}},
}
"""Settings that the data do not suit."""

SUITABLE: dict[str, dict[str, Any]] = {
    'plain': {},
    'bucket': {'bucket': 2, **COST},
    'batch_cost': {'batch_cost': 900, **COST, 'skip': [[8, 16]]},
    'balance': {'balance': 2, **COST},
    'where': {'where': {'length': {'at_least': 3}}},
    'schedule': SCHEDULE,
    'growth': {'on_growth': 'delta', 'skip': [[8, 16]]},
    'packing': {**PACKED, 'skip': [['1doc', '3doc']], 'streams': {'a': {'packing': {'column': 'tokens'}}}},
    'packing of all': {'packing': {**PACKED['packing'], 'sequences_per_epoch': 'all'}},
    'weights_count': {**TOKENS, **STREAMS},
    'exact': {'remainder': 'exact', 'batching_method': 'per_stream'},
    'uneven': {'uneven': 'pad'},
    'fixed': {'sampling_method': 'fixed', 'epoch_size': 32},
    'py1e': {'shuffle_algo': 'py1e', 'shuffle': True},
    'replication': {'replication': 2},
    'pad': {'loader': {'pad': {'tokens': 0}}},
}
"""Settings with which a run starts."""


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('loaders')
    for name in ('a', 'b', 'reserved'):
        columns = {'id': 'int', 'length': 'int', 'tokens': 'ndarray:int32'}
        columns |= {'loss_weight': 'int'} if name == 'reserved' else {}
        with MDSWriter(out=str(root / name), columns=columns, size_limit=2000) as writer:
            for number in range(64):
                writer.write(dict.fromkeys(columns, number) | {'tokens': np.arange(5, dtype=np.int32)})
    return root


def written(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> Path:
    streams = settings.get('streams', {'a': {}})
    placed = {
        name: {'remote': str(folder / name), 'local': str(tmp_path / name), **stream}
        for name, stream in streams.items()
    }
    path = tmp_path / 'x.yaml'
    path.write_text(json.dumps({'train': {'global_batch_size': 8} | settings | {'streams': placed}}))
    return path


def started(path: Path) -> None:
    config = load_config(path).train
    assert config is not None
    replication = config.replication or 1
    next(iter(build_loader(config, topology=Topology(world_size=replication, replication=replication))))


@pytest.mark.parametrize('name', SETTINGS)
def test_settings_that_exclude_each_other(folder: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    path = written(folder, tmp_path, SETTINGS[name])
    with pytest.raises(HeadraceError):
        started(path)
    for command in (['config', 'check'], ['doctor']):
        assert main([*command, str(path)]) == 1
        assert 'in the configuration' in capsys.readouterr().err
    assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize('name', DATA)
def test_settings_that_the_data_do_not_suit(folder: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    path = written(folder, tmp_path, DATA[name])
    assert main(['doctor', str(path)]) == 1
    (problem,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith('PROBLEM')]
    assert not (tmp_path / 'a').exists()  # nothing is written where the run's cache will be
    with pytest.raises(HeadraceError) as refused:
        started(path)
    assert str(refused.value).splitlines()[0][-60:] in problem


@pytest.mark.parametrize('name', SUITABLE)
def test_a_run_that_starts_has_no_problem(folder: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    path = written(folder, tmp_path, SUITABLE[name])
    assert main(['config', 'check', str(path)]) == 0
    assert main(['doctor', str(path)]) == 0
    assert 'ok      train: its settings and columns suit the data' in capsys.readouterr().out
    started(path)


@pytest.mark.parametrize('sizes', [{'global_batch_size': 8}, {'device_batch_size': 8}])
def test_a_batch_size_of_the_top_level_counts(folder: Path, tmp_path: Path, sizes: dict[str, int], capsys: Any) -> None:
    train = {'local': str(folder / 'a')}
    train |= (
        {'batch_cost': {'budget': 900, 'multiple': 3}, **COST} if 'global_batch_size' in sizes else {'uneven': 'pad'}
    )
    path = tmp_path / 'x.yaml'
    path.write_text(json.dumps({**sizes, 'train': train}))
    assert main(['config', 'check', str(path)]) == 1
    assert 'x.yaml:1: train: ' in capsys.readouterr().err


def test_each_row_of_the_table_is_tried(folder: Path, tmp_path: Path) -> None:
    of_python = {'batch_size', 'fixed_epoch', 'loader.collate_fn'}
    rows = {f'{row.first.key}, {row.second.key}': row for row in EXCLUSIONS}
    untried = {name: row for name, row in rows.items() if of_python.isdisjoint(name.split(', '))}
    del untried['uneven, global_batch_size']  # a file may give it at the top level
    for settings in SETTINGS.values():
        with pytest.raises(ConfigError) as refused:
            load_config(written(folder, tmp_path, settings))
        text = str(refused.value)
        untried = {name: row for name, row in untried.items() if pieces(row.rule)[0] not in text}
    assert not untried


def pieces(rule: str) -> list[str]:
    """The parts of a rule between the values that it names."""
    return [part for part in re.split(r'\{.*?\}', rule) if part]
