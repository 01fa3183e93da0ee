"""Which data trained each checkpoint of a run, against what the loaders handed out."""

from __future__ import annotations

import json

import pytest

from headrace.cli import main
from tests.support.trainers.explained_runs import Trained, append, config_of, shown


def test_the_sources_of_each_checkpoint(tmp_path, capsys) -> None:
    append(tmp_path, 'a', 40)
    trained = Trained(tmp_path, config_of(tmp_path, on_growth='delta'))
    trained.train(step=0)
    trained.record.checkpoint()
    append(tmp_path, 'a', 20)
    trained.train(1)
    trained.record.end()
    first, last = shown(capsys, '--run', tmp_path / 'run', '--sources')
    assert (first['step'], first['is_checkpoint'], last['step'], last['is_checkpoint']) == (4, True, 5, False)
    ((old,), (same, new)) = first['sources'], last['sources']
    assert same == {**old, 'share': 0.8}
    assert (old['source'], old['format'], old['drawn'], old['unique']) == (str(tmp_path / 'a'), 'mds', 40, 40)
    assert (new['drawn'], new['unique'], new['share'], new['first_shard']) == (10, 10, 0.2, old['shards'])
    assert main(['explain', '--run', str(tmp_path / 'run'), '--sources']) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ['step', 'stream', 'source', 'format', 'data', 'shards', 'drawn', 'unique', 'share']
    assert [line[-3:] for line in lines[1:]] == [
        ['samples', '40', '1.000'],
        ['samples', '40', '0.800'],
        ['samples', '10', '0.200'],
    ]
    assert main(['explain', '--run', str(tmp_path / 'run'), '--sources', '--step', '1']) == 1
    assert '--sources prints those of a recorded run' in capsys.readouterr().err


@pytest.mark.parametrize('algorithm', ['native', 'py1e'])
def test_sources_count_what_was_drawn_of_each_stream(tmp_path, algorithm, capsys) -> None:
    for name in 'ab':
        append(tmp_path, name, 60)
    config = config_of(tmp_path, 'ab', shuffle_algo=algorithm)
    for name, share in (('a', 0.3), ('b', 0.7)):
        config['train']['streams'][name]['proportion'] = share
    trained = Trained(tmp_path, config)
    trained.train(step=0)
    trained.train(7)
    trained.record.checkpoint(9)
    trained.record.end()
    for found in shown(capsys, '--run', tmp_path / 'run', '--sources'):
        keys = [key for step, keys in trained.keys.items() if step < found['step'] for key in keys]
        for source in found['sources']:
            own = [key for key in keys if (key >= 1000) == (source['stream'] == 'b')]
            assert (source['drawn'], source['unique']) == (len(own), len(set(own)))


def test_sources_of_packed_data_count_tokens(tmp_path, capsys) -> None:
    append(tmp_path, 'a', 60)
    config = config_of(tmp_path, 'a', packing={'sequence_length': 16, 'column': 'tokens'})
    config['global_batch_size'] = 4
    trained = Trained(tmp_path, config)
    trained.train(6, step=0)
    trained.record.end()
    (tmp_path / 'train.yaml').write_text(json.dumps(config))
    (last,) = shown(capsys, tmp_path / 'train.yaml', '--run', tmp_path / 'run', '--sources')
    (source,) = last['sources']
    assert source['unit'] == 'tokens'
    assert source['unique'] == len({key for keys in trained.keys.values() for key in keys})
    assert source['drawn'] <= 6 * 4 * 16
