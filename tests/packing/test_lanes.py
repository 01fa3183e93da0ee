"""Lanes of all ranks, and what their states leave over."""

from __future__ import annotations

import json

import pytest

from headrace import StreamingDataLoader
from headrace.errors import ResumeError
from tests.support.packings.huge_batches import HUGE
from tests.support.packings.packed_orders import make, sequences, world, write
from tests.support.packings.packed_streams import packed
from tests.support.packings.refused_packings import dataset, state_of


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
        {'0': [1, 2, [[0, 0], [1, 0]]]},
    ],
    ids=str,
)
def test_damaged_cuts_are_refused(document_folder, cuts):
    options = {'method': 'concatenate'} if cuts == {'0': [1, 2, [[0, 0], [1, 0]]]} else {}
    state = state_of(document_folder, **options)
    config = json.loads(state['config'])
    with pytest.raises(ResumeError, match='a lane of packing resumes at'):
        StreamingDataLoader(dataset(document_folder, **options), batch_size=2).load_state_dict(
            {**state, 'config': json.dumps({**config, 'cuts': cuts})}
        )


def test_only_cuts_tell_states_of_ranks_apart(many_documents):
    folder, _ = many_documents
    _, states = world(folder, 2, None, 9, exchange=True)
    assert states[0] == states[1]
    _, states = world(folder, 2, None, 9, exchange=False)
    assert states[0] != states[1]
    assert {**states[0], 'config': ''} == {**states[1], 'config': ''}


def test_a_lane_is_taken_up_within_a_long_document(tmp_path):
    folder = write(tmp_path, [100_000] * 4)
    loader = make(folder, lanes=1, batch=1, method='concatenate')
    first = sequences(loader, 3000)
    state = loader.state_dict()
    assert json.loads(state['config'])['cuts']['0'][0] > 3000 - 40
    resumed = make(folder, lanes=1, batch=1, method='concatenate')
    resumed.load_state_dict(state)
    assert sequences(resumed, 1)[0][0] == first[-1][-1] + 1


def test_all_documents_of_a_huge_batch_are_known(explained_folder):
    loader, asked = packed(explained_folder, **HUGE), packed(explained_folder, **HUGE)
    next(iter(loader))
    own = loader.dataset.explain(loader.plan(), 0, reads_data=False)
    read = asked.dataset.explain(asked.plan(), 0)
    assert own.is_known.all()
    assert read.is_known.all()
    assert read.ids.tolist() == own.ids.tolist()
