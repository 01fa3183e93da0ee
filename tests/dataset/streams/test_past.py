"""What `headrace explain --run` says of steps, samples and streams, against what the loaders handed out."""

from __future__ import annotations

import json
import shutil

import pytest

from headrace.cli import main
from headrace.convert import erase
from headrace.errors import ErasedError, ResumeError
from headrace.mixing import build_loader, load_config
from headrace.watching import RecordedRun
from tests.support.trainers.explained_runs import (
    FIRST,
    Trained,
    append,
    check,
    config_of,
    files_of,
    key_at,
    opened,
    shown,
)


@pytest.mark.parametrize(
    ('on_growth', 'streams', 'where'),
    [('delta', 'a', None), ('next_pass', 'ab', None), ('ignore', 'ab', None), ('delta', 'a', {'key': {'at_least': 7}})],
)
def test_a_sample_is_the_same_where_epochs_read_other_shards(tmp_path, on_growth, streams, where, capsys) -> None:
    for name in streams:
        append(tmp_path, name, 40)
    more = {} if where is None else {'where': where}
    trained = Trained(tmp_path, config_of(tmp_path, streams, on_growth=on_growth, **more))
    trained.train(step=0)
    append(tmp_path, 'a', 40)
    trained.train()
    state = trained.loader.state_dict()
    append(tmp_path, 'a', 30)
    trained.record.end()
    resumed = Trained(tmp_path, config_of(tmp_path, streams, on_growth=on_growth, **more))
    resumed.loader.load_state_dict(state)
    resumed.train(step=trained.record.step)
    resumed.record.end()
    # Under `ignore` the run's own data are not those of now.
    last = RecordedRun(tmp_path / 'run').last_loader.dataset
    dataset = last if on_growth == 'ignore' else opened(tmp_path, streams, **more)
    check(tmp_path, trained.keys | resumed.keys, dataset, capsys)
    if on_growth == 'delta':
        assert sorted(key for keys in (trained.keys | resumed.keys).values() for key in keys)[-1] == 109
        assert main(['explain', '--run', str(tmp_path / 'run'), '--sample', '45']) == 0
        text = capsys.readouterr().out
        assert 'seen it 1 time.\n' in text
        assert 'Later ones depend on what is appended' in text


def test_decisions_and_an_erasure_since(tmp_path, capsys) -> None:
    for name in 'ab':
        append(tmp_path, name, 60)
    config = config_of(tmp_path, 'ab')
    for name, share in (('a', 0.5), ('b', 0.5)):
        config['train']['streams'][name]['proportion'] = share
    trained = Trained(tmp_path, config)
    trained.train(4, step=0)
    state = trained.loader.state_dict()
    trained.loader.load_state_dict(state)
    trained.loader.set_proportions({'a': 0.9, 'b': 0.1}, by='test')
    trained.train()
    trained.record.end()
    check(tmp_path, trained.keys, opened(tmp_path, 'ab'), capsys)
    gone = trained.keys[6][0]
    erase(str(tmp_path / 'ab'[gone >= 1000]), [gone], column='key')
    before = files_of(tmp_path)
    found = shown(capsys, '--run', tmp_path / 'run', '--step', 6, '--previews', 1)
    rows = found['rows']
    assert [row['is_erased'] for row in rows] == [key == gone for key in trained.keys[6]]
    ids = [row['id'] for row in rows]
    dataset = opened(tmp_path, 'ab')
    with pytest.raises(ErasedError):
        dataset[ids[0]]
    assert [dataset[i]['key'] for i in ids[1:]] == trained.keys[6][1:]
    assert 'no preview' in found['previews'][str(ids[0])]
    assert RecordedRun(tmp_path / 'run').uses(ids[0]).__next__().step <= 6
    assert files_of(tmp_path) == before


def test_a_packed_run_reads_the_documents_that_it_read(tmp_path, capsys) -> None:
    append(tmp_path, 'a', 60)
    config = config_of(tmp_path, 'a', packing={'sequence_length': 16, 'column': 'tokens'})
    config['global_batch_size'] = 4
    trained = Trained(tmp_path, config)
    trained.train(6, step=0)
    trained.record.end()
    append(tmp_path, 'a', 30)  # a run with `packing` refuses these, but one that looks back does not see them
    shutil.rmtree(tmp_path / 'cache')
    path = tmp_path / 'train.yaml'
    path.write_text(json.dumps(config))
    for step, keys in trained.keys.items():
        found = shown(capsys, path, '--run', tmp_path / 'run', '--step', step, '--previews', 0)
        assert sorted({piece['id'] for row in found['rows'] for piece in row['documents']}) == keys
    assert not (tmp_path / 'cache').exists()


@pytest.mark.parametrize('cache', ['kept', 'removed', 'refreshed', 'read_only'])
def test_data_of_other_formats_are_read_in_the_version_of_the_run(tmp_path, cache, capsys) -> None:
    pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')

    def write(name: str, first: int) -> None:
        (tmp_path / 'a').mkdir(exist_ok=True)
        pq.write_table(pa.table({'key': range(first, first + 40)}), tmp_path / 'a' / f'{name}.parquet')

    write('m', 0)
    trained = Trained(tmp_path, config_of(tmp_path))
    trained.train(step=0)
    trained.record.end()
    write('a', 1000)  # before the others by name
    folder = tmp_path / 'cache' / 'a'
    if cache == 'removed':
        shutil.rmtree(folder)
    elif cache == 'refreshed':
        Trained(tmp_path, config_of(tmp_path)).train()
    elif cache == 'read_only':
        folder.chmod(0o555)
    before = files_of(tmp_path)
    for step, keys in trained.keys.items():
        found = shown(capsys, '--run', tmp_path / 'run', '--step', step, '--previews', 2)
        assert [row['id'] for row in found['rows']] == keys
        assert [values['key']['value'] for values in found['previews'].values()] == keys[:2]
    assert shown(capsys, '--run', tmp_path / 'run', '--sample', 5)['file'].startswith('m.parquet.0')
    assert files_of(tmp_path) == before
    folder.parent.chmod(0o755)


@pytest.mark.parametrize('cache', ['kept', 'removed'])
def test_a_sample_that_was_written_again_is_shown_from_the_cache_or_not_at_all(tmp_path, cache, capsys) -> None:
    append(tmp_path, 'a', 40)
    trained = Trained(tmp_path, config_of(tmp_path))
    trained.train(step=0)
    trained.record.end()
    shutil.move(tmp_path / 'a', tmp_path / 'old')
    FIRST['a'] = 500
    try:  # shards of the same names and sizes, except for the last one
        append(tmp_path, 'a', 35)
    finally:
        FIRST['a'] = 0
    if cache == 'removed':
        shutil.rmtree(tmp_path / 'cache')
    found = shown(capsys, '--run', tmp_path / 'run', '--step', 2, '--previews', 10)
    assert [row['id'] for row in found['rows']] == trained.keys[2]
    for sample, values in found['previews'].items():
        if cache == 'kept':
            assert values['key']['value'] == int(sample)
        else:
            assert 'no preview' in values


def test_data_that_were_written_again_are_refused_with_their_place(tmp_path) -> None:
    append(tmp_path, 'a', 40)
    config = config_of(tmp_path)
    config['train']['streams']['a'] = {'local': str(tmp_path / 'a'), 'columns': ['key']}
    trained = Trained(tmp_path, config)
    trained.train(step=0)
    trained.record.end()
    shutil.rmtree(tmp_path / 'a')
    append(tmp_path, 'a', 30)
    with pytest.raises(ResumeError, match=r'kept no copy .*train\.streams\.NAME\.remote') as error:
        RecordedRun(tmp_path / 'run').step(1)
    assert 'on_mixture_change' not in str(error.value)


def test_a_skip_is_made_for_the_decisions_and_batches_of_the_run(tmp_path, capsys) -> None:
    for name in 'ab':
        append(tmp_path, name, 60)
    config = config_of(tmp_path, 'ab')
    for name in 'ab':
        config['train']['streams'][name]['proportion'] = 0.5
    trained = Trained(tmp_path, config)
    trained.train(4, step=0)
    state = trained.loader.state_dict()
    trained.loader.load_state_dict(state)
    trained.loader.set_proportions({'a': 0.9, 'b': 0.1}, by='test')
    decided = trained.loader.state_dict()
    trained.train()
    trained.record.end()
    out = tmp_path / 'skip.yaml'
    assert main(['skip', '--run', str(tmp_path / 'run'), '--step', '6', '--before', '1', '--write', str(out)]) == 0
    said = capsys.readouterr().out
    assert 'Step 5: global batch 5 of epoch 0, samples 50 to 60 of the run.' in said
    assert f'defaults: [CONFIG, {out}]' in said
    (tmp_path / 'train.yaml').write_text(json.dumps(config))
    (tmp_path / 'resumed.yaml').write_text(f'defaults: [train.yaml, {out.name}]')
    resumed = build_loader(load_config(tmp_path / 'resumed.yaml', overrides=['train.on_mixture_change=continue']).train)
    resumed.load_state_dict(decided)
    kept = [keys for step, keys in trained.keys.items() if step >= 4 and step not in (5, 6)]
    assert [batch['key'].tolist() for batch in resumed] == kept
    (tmp_path / 'train.yaml').write_text(json.dumps({**config, 'global_batch_size': 4}))  # changed since
    assert main(['skip', '--run', str(tmp_path / 'run'), '--step', '6', '--json']) == 0
    (batch,) = json.loads(capsys.readouterr().out)['batches']
    assert [key_at(tmp_path, row) for row in batch['rows']] == trained.keys[6]
    for arguments, message in (
        (['--step', '6'], 'or --run and the folder of a run'),
        (['--run', str(tmp_path / 'run'), '--step', '6', '--ranks', '8'], '--ranks place a batch'),
        (['--run', str(tmp_path / 'run'), '--step', '6', '--after', '-1'], 'count from 0'),
    ):
        assert main(['skip', *arguments]) == 1
        assert message in capsys.readouterr().err
