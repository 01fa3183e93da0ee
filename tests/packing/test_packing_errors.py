"""Bad input is refused by name, with what was given and what to do, before any document is read."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.cli import main
from headrace.config.packing import PackingConfig
from headrace.errors import ConfigError, EmptyDatasetError, ResumeError, TopologyError
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from headrace.packing.tokenizers import encoder_of


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp('documents')
    with MDSWriter(out=str(path), columns={'tokens': 'bytes', 'id': 'int'}) as writer:
        for number in range(12):
            writer.write({'tokens': bytes(range(1, 6)), 'id': number})
    return str(path)


def dataset(folder, *, rank=0, ranks=1, **options) -> PackedDataset:
    packing = {'sequence_length': 8, 'token_dtype': 'uint8'}
    packing |= {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    topology = Topology(rank=rank, world_size=ranks)
    return PackedDataset(local=folder, packing=Packing(**packing), topology=topology, **options)


@pytest.mark.parametrize(
    ('options', 'messages'),
    [
        ({'sequence_length': 1}, ['`sequence_length` must be at least 2 (got 1)']),
        (
            {'lanes': 0, 'window': -1},
            ['`lanes` must be at least 1 (got 0)', '`window` must be at least 1'],
        ),
        ({'method': 'tetris'}, ["`method` must be one of best_fit, concatenate (got 'tetris')"]),
        ({'token_dtype': 'float32'}, ["int32, int64 (got 'float32')"]),
        ({'lanes': 8, 'sequences_per_epoch': 20}, ['multiple of the 8 `lanes`; nearest: 16 or 24 (got 20)']),
        ({'eos_token_id': -1}, ['`eos_token_id` must be at least 0']),
    ],
)
def test_settings(options, messages):
    with pytest.raises(ConfigError) as raised:
        Packing(**{'sequence_length': 8, **options})
    for message in messages:
        assert message in str(raised.value)


def test_the_yaml_has_all_settings():
    of_yaml, of_python = ({field.name: field for field in dataclasses.fields(cls)} for cls in (PackingConfig, Packing))
    assert of_yaml.keys() == of_python.keys()
    defaults = {name: field.default for name, field in of_python.items() if name != 'sequence_length'}
    assert {name: of_yaml[name].default for name in defaults} == defaults


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'column': 'text'}, "takes documents from column 'text', but .* has id, tokens. Set `column`"),
        ({'shuffle_algo': 'py1e', 'shuffle': True}, "`shuffle_algo` must be 'native' with packing, but is 'py1e'"),
        (
            {'on_mixture_change': 'continue', 'sequences_per_epoch': 'all'},
            "`on_mixture_change` must be 'refuse' with sequences_per_epoch 'all', but is 'continue'",
        ),
        ({'lanes': 16}, 'there are 16 lanes and 12 samples'),
    ],
)
def test_datasets(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        dataset(folder, batch_size=2, **options)


def test_loaders(folder):
    with pytest.raises(ConfigError, match='`collate_fn` is not to be had with packing'):
        next(iter(StreamingDataLoader(dataset(folder), batch_size=2, collate_fn=list)))
    with pytest.raises(ConfigError, match='multiple of the 4 `lanes`; nearest: 4 or 8; got 6'):
        next(iter(StreamingDataLoader(dataset(folder, sequences_per_epoch=6), batch_size=4)))
    with pytest.raises(TopologyError, match='must divide the 4 lanes of the packing, got 3'):
        StreamingDataLoader(dataset(folder, lanes=4, ranks=3), batch_size=4).plan()
    with pytest.raises(ConfigError, match=r'multiples of the 4 lanes, .*, got \[4, 6\] in sequences'):
        StreamingDataLoader(dataset(folder, lanes=4, skip=[(4, 6)]), batch_size=4).plan()
    with pytest.raises(TypeError, match='no length: its epoch does not end'):
        len(dataset(folder, batch_size=2))
    with pytest.raises(TypeError, match='no length'):
        len(StreamingDataLoader(dataset(folder), batch_size=2))
    with pytest.raises(TypeError, match=r'read by a headrace\.StreamingDataLoader'):
        next(iter(torch.utils.data.DataLoader(dataset(folder, batch_size=2), batch_size=2)))


def test_documents_without_tokens(folder):
    empty = dataset(folder, tokenizer=lambda values: [[] for _ in values], column='tokens')
    with pytest.raises(EmptyDatasetError, match="100 in a row of one lane have none. Check column 'tokens'"):
        next(iter(StreamingDataLoader(empty, batch_size=2)))


def state_of(folder, **options):
    loader = StreamingDataLoader(dataset(folder, **options), batch_size=2)
    for _ in zip(range(5), loader, strict=False):
        pass
    return loader.state_dict()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'sequence_length': 9}, 'sequence_length: 8 in the checkpoint, 9 now'),
        ({'method': 'concatenate', 'eos_token_id': 3}, "eos_token_id: None in .* 3 now; method: 'best_fit' in .*'conc"),
        ({'tokenizer': lambda values: values}, "tokenizer: 'none' in the checkpoint, .*lambda"),
        ({'lanes': 4}, 'lanes: 2 in the checkpoint, 4 now'),
        ({'shuffle': True}, 'shuffle: False in the checkpoint, True now'),
        ({'epoch_size': 6}, 'epoch_size: 12 in the checkpoint, 6 now'),
        ({'sequences_per_epoch': 8}, 'sequences_per_epoch: 1000000000000 in the checkpoint, 8 now'),
    ],
)
def test_another_packing_is_no_continuation(folder, options, message):
    state = state_of(folder)
    loader = StreamingDataLoader(dataset(folder, column='tokens', **options), batch_size=2)
    with pytest.raises(ResumeError, match=message):
        loader.load_state_dict(state)


def test_samples_and_sequences_are_no_continuations_of_one_another(folder):
    plain = StreamingDataLoader(StreamingDataset(local=folder, batch_size=2))
    packed = StreamingDataLoader(dataset(folder), batch_size=2)
    with pytest.raises(ResumeError, match='position in samples that were not packed'):
        packed.load_state_dict(plain.state_dict())
    with pytest.raises(ResumeError, match='packing: {.*} in the checkpoint, .nothing. now'):
        plain.load_state_dict(state_of(folder))


@pytest.mark.parametrize(
    'cuts',
    [
        [],
        {'5': [1, 1, []]},
        {'x': [1, 1, []]},
        {'0': [1, 1]},
        {'0': [99, 1, []]},
        {'0': [1, -1, []]},
        {'0': [1, 1, [[1, 0]]]},
        {'0': [1, 1, [[0, 0]] * 9]},
        {'0': [1, 1, [[0]]]},
        {'0': [True, 1, []]},
        {'0': [1, 10**30, []]},
        {'1' * 5000: [1, 1, []]},
    ],
    ids=str,
)
def test_damaged_cuts_are_refused(folder, cuts):
    state = state_of(folder)
    config = json.loads(state['config'])
    with pytest.raises(ResumeError, match='a lane of packing is taken up at'):
        StreamingDataLoader(dataset(folder), batch_size=2).load_state_dict(
            {**state, 'config': json.dumps({**config, 'cuts': cuts})}
        )


@pytest.mark.parametrize(
    ('keys', 'message'),
    [
        ({'packing': {}}, 'needs `sequence_length`'),
        ({'packing': {'sequence_length': 8, 'tokeniser': {}}}, 'did you mean "tokenizer"'),
        ({'packing': {'sequence_length': 8, 'tokenizer': {}}}, 'names no tokenizer; give `path`'),
        ({'packing': {'sequence_length': 8, 'method': 'bestfit'}}, 'must be one of best_fit, concatenate'),
        ({'packing': {'sequence_length': 8}, 'shuffle_algo': 'py1s'}, 'is `native` with packing'),
        (
            {'packing': {'sequence_length': 8, 'sequences_per_epoch': 'all'}, 'on_mixture_change': 'continue'},
            'is `refuse` with `sequences_per_epoch: all`',
        ),
        ({'packing': {'sequence_length': 8, 'lanes': 4, 'sequences_per_epoch': 6}}, 'multiple of the 4 `lanes`'),
    ],
    ids=str,
)
def test_files(folder, keys, message):
    with pytest.raises(ConfigError, match=message):
        load_config({'global_batch_size': 2, 'train': {'local': folder, **keys}})


def test_a_file_gives_what_the_arguments_give(folder):
    packing = {'sequence_length': 8, 'token_dtype': 'uint8', 'sequences_per_epoch': '1k', 'lanes': 2}
    config = load_config({'global_batch_size': 2, 'train': {'local': folder, 'packing': packing}})
    loader = build_loader(config.train, topology=Topology())
    assert isinstance(loader.dataset, PackedDataset)
    assert len(loader) == 500
    other = StreamingDataLoader(dataset(folder, lanes=2, sequences_per_epoch=1000), batch_size=2)
    for one, another in zip(loader, other, strict=True):
        assert all(torch.equal(one[name], another[name]) for name in another)


def test_a_batch_is_explained_by_its_sequences(folder, tmp_path, capsys):
    file = tmp_path / 'packed.yaml'
    packing = {'sequence_length': 8, 'token_dtype': 'uint8'}
    file.write_text(json.dumps({'global_batch_size': 4, 'train': {'local': folder, 'packing': packing}}))
    assert main(['explain', str(file), '--batch', '3', '--ranks', '2', '--json']) == 0
    rows = json.loads(capsys.readouterr().out)['rows']
    assert [(row['rank'], row['position']) for row in rows] == [(0, 12), (0, 14), (1, 13), (1, 15)]
    assert main(['skip', str(file), '--step', '3']) == 0
    assert 'skip: [[12, 16]]' in capsys.readouterr().out
    # Lanes are skipped all together only.
    packing |= {'lanes': 6}
    file.write_text(json.dumps({'global_batch_size': 4, 'train': {'local': folder, 'packing': packing}}))
    assert main(['skip', str(file), '--step', '3']) == 0
    assert 'skip: [[12, 18]]' in capsys.readouterr().out
    assert main(['explain', str(file), '--sample', '5']) != 0
    assert 'before it is tokenised' in capsys.readouterr().err


@pytest.mark.parametrize(
    'changes',
    [{'skip': 'abc'}, {'skip': 5}, {'skip': [[3, 1]]}, {'skip': [[1]]}, {'documents': -5}, {'documents': True}],
    ids=str,
)
def test_damaged_states_are_refused(folder, changes):
    state = state_of(folder)
    config = json.dumps({**json.loads(state['config']), **changes})
    with pytest.raises(ResumeError, match='The checkpoint is damaged'):
        StreamingDataLoader(dataset(folder), batch_size=2).load_state_dict({**state, 'config': config})


def test_a_carried_piece_that_its_document_has_not(folder):
    state = state_of(folder)
    config = json.dumps({**json.loads(state['config']), 'cuts': {'0': [1, 3, [[2, 10**6]]]}})
    loader = StreamingDataLoader(dataset(folder), batch_size=2)
    loader.load_state_dict({**state, 'config': config})
    with pytest.raises(ResumeError, match='from token 1000000 on, but it has 5'):
        next(iter(loader))


def test_an_epoch_without_an_end_is_not_begun_twice(folder):
    loader = StreamingDataLoader(dataset(folder), batch_size=2)
    next(iter(loader))
    with pytest.raises(ConfigError, match='has one epoch, which does not end, got epoch 1'):
        next(iter(loader))
    with pytest.raises(ConfigError, match='A loader for evaluation .* Set `sequences_per_epoch`'):
        next(iter(StreamingDataLoader(dataset(folder), batch_size=2, fixed_epoch=0)))


def test_a_tokenizer_gives_a_document_for_each_value(folder):
    with pytest.raises(ConfigError, match='must give a document for each of its .* values, but gave 1'):
        next(iter(StreamingDataLoader(dataset(folder, tokenizer=lambda _: [[1]], column='tokens'), batch_size=2)))
    with pytest.raises(ConfigError, match='Tokens must be numbers below 2147483648, but are from 1 to 8589934592'):
        encoder_of(Packing(sequence_length=8))([np.array([1, 2**33])])
