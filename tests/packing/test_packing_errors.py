"""Bad input is refused by name, with what was given and what to do, before any document is read."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from headrace import StreamingDataLoader, Topology
from headrace.cli import main
from headrace.config.packing import PackingConfig
from headrace.errors import ConfigError, ResumeError, TopologyError
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from headrace.packing.tokenizers import encoder_of
from tests.support.packings.refused_packings import dataset, state_of


def test_the_yaml_has_all_settings():
    of_yaml, of_python = ({field.name: field for field in dataclasses.fields(cls)} for cls in (PackingConfig, Packing))
    assert of_yaml.keys() == of_python.keys()
    defaults = {name: field.default for name, field in of_python.items() if name != 'sequence_length'}
    assert {name: of_yaml[name].default for name in defaults} == defaults


def test_loaders(document_folder):
    with pytest.raises(ConfigError, match='`collate_fn` is not supported with packing'):
        next(iter(StreamingDataLoader(dataset(document_folder), batch_size=2, collate_fn=list)))
    with pytest.raises(ConfigError, match='multiple of the 4 `lanes`; nearest: 4 or 8; got 6'):
        next(iter(StreamingDataLoader(dataset(document_folder, sequences_per_epoch=6), batch_size=4)))
    with pytest.raises(TopologyError, match='must divide the 4 lanes of the packing, got 3'):
        StreamingDataLoader(dataset(document_folder, lanes=4, ranks=3), batch_size=4).plan()
    with pytest.raises(ConfigError, match=r'multiples of the 4 lanes, .*, got \[4, 6\] in sequences'):
        StreamingDataLoader(dataset(document_folder, lanes=4, skip=[(4, 6)]), batch_size=4).plan()
    with pytest.raises(TypeError, match='no length: its epoch does not end'):
        len(dataset(document_folder, batch_size=2))
    with pytest.raises(TypeError, match='no length'):
        len(StreamingDataLoader(dataset(document_folder), batch_size=2))
    with pytest.raises(TypeError, match=r'read by a headrace\.StreamingDataLoader'):
        next(iter(torch.utils.data.DataLoader(dataset(document_folder, batch_size=2), batch_size=2)))


@pytest.mark.parametrize(
    ('keys', 'message'),
    [
        ({'packing': {}}, 'needs `sequence_length`'),
        ({'packing': {'sequence_length': 8, 'tokeniser': {}}}, 'did you mean "tokenizer"'),
        ({'packing': {'sequence_length': 8, 'tokenizer': {}}}, 'names no tokenizer; give `path`'),
        ({'packing': {'sequence_length': 8, 'method': 'bestfit'}}, 'must be one of best_fit, concatenate'),
        ({'packing': {'sequence_length': 8}, 'shuffle_algo': 'py1s'}, '`shuffle_algo` must be .native. with packing'),
        (
            {'packing': {'sequence_length': 8, 'sequences_per_epoch': 'all'}, 'on_mixture_change': 'continue'},
            "`on_mixture_change` must be 'refuse' with sequences_per_epoch 'all'",
        ),
        ({'packing': {'sequence_length': 8, 'lanes': 4, 'sequences_per_epoch': 6}}, 'multiple of the 4 `lanes`'),
    ],
    ids=str,
)
def test_files(document_folder, keys, message):
    with pytest.raises(ConfigError, match=message):
        load_config({'global_batch_size': 2, 'train': {'local': document_folder, **keys}})


def test_a_file_gives_what_the_arguments_give(document_folder):
    packing = {'sequence_length': 8, 'token_dtype': 'uint8', 'sequences_per_epoch': '1k', 'lanes': 2}
    config = load_config({'global_batch_size': 2, 'train': {'local': document_folder, 'packing': packing}})
    loader = build_loader(config.train, topology=Topology())
    assert isinstance(loader.dataset, PackedDataset)
    assert len(loader) == 500
    other = StreamingDataLoader(dataset(document_folder, lanes=2, sequences_per_epoch=1000), batch_size=2)
    for one, another in zip(loader, other, strict=True):
        assert all(torch.equal(one[name], another[name]) for name in another)


def test_a_batch_is_explained_by_its_sequences(document_folder, tmp_path, capsys):
    file = tmp_path / 'packed.yaml'
    packing = {'sequence_length': 8, 'token_dtype': 'uint8'}
    file.write_text(json.dumps({'global_batch_size': 4, 'train': {'local': document_folder, 'packing': packing}}))
    assert main(['explain', str(file), '--batch', '3', '--ranks', '2', '--json']) == 0
    rows = json.loads(capsys.readouterr().out)['rows']
    assert [(row['rank'], row['position']) for row in rows] == [(0, 12), (0, 14), (1, 13), (1, 15)]
    assert main(['skip', str(file), '--step', '3']) == 0
    assert 'skip: [[12, 16]]' in capsys.readouterr().out
    # Lanes are skipped all together only.
    packing |= {'lanes': 6}
    file.write_text(json.dumps({'global_batch_size': 4, 'train': {'local': document_folder, 'packing': packing}}))
    assert main(['skip', str(file), '--step', '3']) == 0
    assert 'skip: [[12, 18]]' in capsys.readouterr().out
    assert main(['explain', str(file), '--sample', '5', '--ranks', '2', '--json']) == 0
    place = json.loads(capsys.readouterr().out)['next']
    first: list[int] = []
    for batch in range(place['batch'] + 1):
        assert main(['explain', str(file), '--batch', str(batch), '--ranks', '2', '--json']) == 0
        rows = json.loads(capsys.readouterr().out)['rows']
        first += [row['position'] for row in rows if any(document['id'] == 5 for document in row['documents'])]
    assert min(first) == place['position']


def test_a_carried_piece_that_its_document_has_not(document_folder):
    state = state_of(document_folder)
    config = json.dumps({**json.loads(state['config']), 'cuts': {'0': [1, 3, [[2, 10**6]]]}})
    loader = StreamingDataLoader(dataset(document_folder), batch_size=2)
    loader.load_state_dict({**state, 'config': config})
    with pytest.raises(ResumeError, match='from token 1000000 on, but it has 5'):
        next(iter(loader))


def test_an_epoch_without_an_end_is_not_begun_twice(document_folder):
    loader = StreamingDataLoader(dataset(document_folder), batch_size=2)
    next(iter(loader))
    with pytest.raises(ConfigError, match='has one epoch, which does not end, got epoch 1'):
        next(iter(loader))
    with pytest.raises(ConfigError, match='A loader for evaluation .* Set `sequences_per_epoch`'):
        next(iter(StreamingDataLoader(dataset(document_folder), batch_size=2, fixed_epoch=0)))


def test_a_tokenizer_gives_a_document_for_each_value(document_folder):
    with pytest.raises(ConfigError, match='must give a document for each of its .* values, but gave 1'):
        next(
            iter(
                StreamingDataLoader(dataset(document_folder, tokenizer=lambda _: [[1]], column='tokens'), batch_size=2)
            )
        )
    with pytest.raises(ConfigError, match='Tokens must be numbers below 2147483648, but are from 1 to 8589934592'):
        encoder_of(Packing(sequence_length=8))([np.array([1, 2**33])])
