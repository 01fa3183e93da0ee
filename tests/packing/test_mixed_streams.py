"""One packed mix of streams whose documents are tokens or texts, in other columns, by other tokenizers."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import yaml

from headrace import Stream, StreamingDataset, Topology
from headrace.cli import main
from headrace.errors import ConfigError, DocumentError, ResumeError
from headrace.mixing import build_loader, load_config
from headrace.packing import StreamPacking
from tests.support.packings.mixed_streams import (
    mixed,
    packings,
    plain,
    rows,
    tokenize,
    write_mixed,
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    return write_mixed(tmp_path_factory.mktemp('mixed'))


@pytest.mark.parametrize('workers', [0, 2])
def test_the_tokens_are_those_of_each_stream(folder, tmp_path, workers):
    whole = rows(plain(folder), 30)
    loader = mixed(folder, tmp_path, workers=workers)
    assert rows(loader, 7) == whole[:28]
    state = loader.state_dict()
    for ranks in (1, 2):
        size = 4 // ranks
        of_ranks = []
        for rank in range(ranks):
            again = mixed(folder, tmp_path, batch=size, topology=Topology(rank=rank, world_size=ranks))
            again.load_state_dict(state)
            of_ranks.append(rows(again, 23))
        assert sorted(row for found in of_ranks for row in found) == sorted(whole[28:120])


def test_a_file_says_the_same(folder, tmp_path, capsys):
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models, pre_tokenizers

    for name, base in (('decimal', '{}'), ('hexadecimal', '{:x}')):
        tokenizer = Tokenizer(models.WordLevel({base.format(i): i for i in range(8000)} | {'?': 8000}, unk_token='?'))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(tmp_path / f'{name}.json'))
    of_streams = {
        'array': {'column': 'ids'},
        'raw': {'token_dtype': 'uint32'},
        'listed': {'column': 'ids', 'token_dtype': 'int32'},
        'text': {},
        'body': {'column': 'body'},
        'other': {'tokenizer': {'path': str(tmp_path / 'hexadecimal.json')}},
    }
    streams = {
        name: {'remote': str(folder / name), 'local': str(tmp_path / name)} | ({'packing': own} if own else {})
        for name, own in of_streams.items()
    }
    packing = {
        'sequence_length': 16,
        'window': 3,
        'lanes': 4,
        'tokenizer': {'library': 'tokenizers', 'path': str(tmp_path / 'decimal.json')},
    }
    train = {'shuffle': True, 'shuffle_seed': 3, 'predownload': 8, 'streams': streams, 'packing': packing}
    (tmp_path / 'mix.yaml').write_text(yaml.safe_dump({'global_batch_size': 4, 'train': train}, sort_keys=False))
    assert main(['config', 'check', str(tmp_path / 'mix.yaml')]) == 0
    capsys.readouterr()
    assert rows(build_loader(load_config(tmp_path / 'mix.yaml').train), 20) == rows(plain(folder), 20)
    assert main(['explain', str(tmp_path / 'mix.yaml'), '--batch', '3', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['rows']


@pytest.mark.parametrize(
    ('name', 'other', 'message'),
    [
        ('other', StreamPacking(tokenizer=tokenize), "tokenizer of stream 'other': .*hexadecimal.* in the checkpoint"),
        ('text', StreamPacking(eos_token_id=0), "eos_token_id of stream 'text': None in the checkpoint, 0 now"),
        ('body', StreamPacking(column='id'), "column of stream 'body': 'body' in the checkpoint, 'id' now"),
        ('raw', StreamPacking(token_dtype='int32'), "token_dtype of stream 'raw': 'uint32' in the checkpoint"),
    ],
)
def test_another_packing_of_a_stream_is_refused_at_a_resume(folder, tmp_path, name, other, message):
    loader = mixed(folder, tmp_path)
    whole = rows(plain(folder), 4)
    assert rows(loader, 2) == whole[:8]
    state = loader.state_dict()
    for change in ('refuse', 'continue'):
        changed = mixed(folder, tmp_path, packings() | {name: other}, on_mixture_change=change)
        with pytest.raises(ResumeError, match=message):
            changed.load_state_dict(state)
    # What says the same in other words is the same.
    same = mixed(folder, tmp_path, packings() | {'text': StreamPacking(tokenizer=tokenize, column='text')})
    same.load_state_dict(state)
    assert rows(same, 2) == whole[8:]


def test_a_stream_with_its_own_packing_joins_a_run(folder, tmp_path):
    few = {name: packing for name, packing in packings().items() if name in ('text', 'array')}
    loader = mixed(folder, tmp_path, few)
    before = rows(loader, 5)
    state = loader.state_dict()
    joined = mixed(folder, tmp_path, few | {'other': packings()['other']}, on_mixture_change='continue')
    joined.load_state_dict(state)
    tokens = {token for row in before + rows(joined, 30) for token in row}
    assert {token // 1000 for token in tokens} == {0, 3, 5}


def test_a_run_without_streams_of_their_own_has_the_checkpoint_of_before(folder):
    loader = plain(folder)
    rows(loader, 2)
    assert 'streams' not in json.loads(loader.state_dict()['config'])['packing']


def test_bad_documents_of_one_stream_are_skipped(tmp_path, caplog):
    for name, lines in (('tok', [[1, 2], None, [3]]), ('txt', ['4 5', None, 'six'])):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'a.jsonl').write_text(''.join(json.dumps({name: line}) + '\n' for line in lines))
    streams = {'tok': StreamPacking(column='tok', token_dtype='int32'), 'txt': StreamPacking(column='txt')}
    with caplog.at_level(logging.WARNING, 'headrace'):
        loader = mixed(tmp_path, tmp_path / 'cache', streams, on_bad_sample='skip', lanes=1, batch=1)
        assert {token for row in rows(loader, 3) for token in row} == {1, 2, 3, 4, 5}
    assert caplog.text.count('is skipped') == 3
    with pytest.raises((DocumentError, ValueError, AttributeError), match='Column|six|NoneType'):
        rows(mixed(tmp_path, tmp_path / 'cache', streams, lanes=1, batch=1), 3)


def test_what_does_not_fit_is_refused_by_stream_and_column(folder, tmp_path):
    with pytest.raises(
        ConfigError, match="documents from column 'text', but .*array.* has id, ids. Set `column`, here or in"
    ):
        mixed(folder, tmp_path, {'array': None, 'text': None})
    with pytest.raises(ConfigError, match="`packing` of stream .*must be a StreamPacking, but is 'text'"):
        mixed(folder, tmp_path, {'text': 'text'})
    with pytest.raises(ConfigError, match='`token_dtype` says that the column holds tokens, and `tokenizer`'):
        StreamPacking(tokenizer=tokenize, token_dtype='int32')
    with pytest.raises(ConfigError, match='`eos_token_id` must be at least 0'):
        StreamPacking(eos_token_id=-1)
    with pytest.raises(
        ConfigError, match='`packing` of stream stream_0 needs `packing` of the loader, or a PackedDataset'
    ):
        StreamingDataset(streams=[Stream(local=str(folder / 'text'), packing=StreamPacking(column='text'))])


@pytest.mark.parametrize(
    ('train', 'message'),
    [
        (
            {'streams': {'a': {'local': '/a', 'packing': {'column': 'x'}}}},
            '`packing` of stream a needs `packing` of the',
        ),
        (
            {
                'packing': {'sequence_length': 8},
                'streams': {'a': {'local': '/a', 'columns': ['id', 'text'], 'packing': {'token_dtype': 'int8'}}},
            },
            'stream a reads the columns id, text, without tokens of its documents',
        ),
        (
            {
                'packing': {'sequence_length': 8, 'tokenizer': {'path': 'x'}},
                'columns': ['id'],
                'streams': {'b': {'local': '/a'}},
            },
            'stream b reads the columns id, without text of its documents',
        ),
        (
            {
                'packing': {'sequence_length': 8},
                'streams': {'a': {'local': '/a', 'packing': {'token_dtype': 'int8', 'tokenizer': {'path': 'x'}}}},
            },
            '`tokenizer` that it holds texts; keep one',
        ),
        (
            {'packing': {'sequence_length': 8}, 'streams': {'a': {'local': '/a', 'packing': {'colum': 'x'}}}},
            'did you mean "column"',
        ),
        (
            {'packing': {'sequence_length': 8}, 'streams': {'a': {'local': '/a', 'column': 'x'}}},
            'did you mean "packing"',
        ),
    ],
    ids=str,
)
def test_what_a_file_cannot_mean_is_refused_without_the_data(train, message):
    with pytest.raises(ConfigError, match=message):
        load_config({'global_batch_size': 4, 'train': train})
