"""Documents of any sequences, packed again."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from headrace.errors import ResumeError
from tests.support.packings.changed_mixtures import (
    LANES,
    MIXTURES,
    Leg,
    make,
    sequences,
    tokens_of_document,
    trained,
)


def test_documents_are_explained_on_both_sides_of_a_change(data):
    mixed_folder, lengths = data
    before, after = (Leg(MIXTURES[number], 3) for number in (0, 1))
    state = trained(mixed_folder, before, None)
    resumed = make(mixed_folder, after, change=True)
    resumed.load_state_dict(state)
    batches = [sequences(batch) for batch in itertools.islice(resumed, 3)]
    dataset = make(mixed_folder, after, change=True).dataset
    dataset.load_state_dict(state)
    sizes = np.cumsum([0, *(len(lengths[name]) for name in dataset.stream_names)])
    plan = dataset.plan(start=36, global_batch_size=LANES)
    for k, batch in enumerate(batches):
        told: dict[int, list[int]] = defaultdict(list)
        columns = dataset.explain(plan, k).columns()
        for position, stream, sample_id, begin, end in zip(
            *(columns[name] for name in ('position', 'stream', 'id', 'begin', 'end')), strict=True
        ):
            number = sample_id - int(sizes[dataset.stream_names.index(stream)])
            told[position] += tokens_of_document((stream, number), lengths[stream][number])[begin:end]
        assert [told[36 + 12 * k + row] for row in range(LANES)] == batch


def test_sequences_before_changes_need_a_checkpoint_of_their_time(data):
    mixed_folder, _ = data
    state = trained(mixed_folder, Leg(MIXTURES[0], 2), None)
    for number in (1, 2):
        state = trained(mixed_folder, Leg(MIXTURES[number], 60), state, change=True)
    loader = make(mixed_folder, Leg(MIXTURES[2], 1))
    loader.load_state_dict(state)
    with pytest.raises(ResumeError, match='Use a checkpoint from before the change'):
        loader.dataset.explain(loader.dataset.plan(global_batch_size=LANES), 0)
