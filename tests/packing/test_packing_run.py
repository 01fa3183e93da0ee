"""States that are no continuation of a packed run."""

from __future__ import annotations

import json

import pytest

from headrace import StreamingDataLoader, StreamingDataset
from headrace.errors import ResumeError
from tests.support.packings.refused_packings import dataset, state_of


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
def test_another_packing_is_no_continuation(document_folder, options, message):
    state = state_of(document_folder)
    loader = StreamingDataLoader(dataset(document_folder, column='tokens', **options), batch_size=2)
    with pytest.raises(ResumeError, match=message):
        loader.load_state_dict(state)


def test_samples_and_sequences_are_no_continuations_of_one_another(document_folder):
    plain = StreamingDataLoader(StreamingDataset(local=document_folder, batch_size=2))
    packed = StreamingDataLoader(dataset(document_folder), batch_size=2)
    with pytest.raises(ResumeError, match='position in samples that were not packed'):
        packed.load_state_dict(plain.state_dict())
    with pytest.raises(ResumeError, match='packing: {.*} in the checkpoint, .nothing. now'):
        plain.load_state_dict(state_of(document_folder))


@pytest.mark.parametrize(
    'changes',
    [{'skip': 'abc'}, {'skip': 5}, {'skip': [[3, 1]]}, {'skip': [[1]]}, {'documents': -5}, {'documents': True}],
    ids=str,
)
def test_damaged_states_are_refused(document_folder, changes):
    state = state_of(document_folder)
    config = json.dumps({**json.loads(state['config']), **changes})
    with pytest.raises(ResumeError, match='The checkpoint is damaged'):
        StreamingDataLoader(dataset(document_folder), batch_size=2).load_state_dict({**state, 'config': config})
