"""Shares of streams in the tokens, as a schedule promises them."""

from __future__ import annotations

import itertools

from tests.support.packings.counted_packings import counted
from tests.support.packings.packed_streams import packed


def test_the_promise_of_a_schedule_follows_it(counted_folder):
    proportions = [{'at': 0, 'proportions': {'code': 1}}, {'at': 40, 'proportions': {'prose': 1}}]
    loader = packed(counted_folder, schedule=proportions, epoch_size=60, lanes=1, batch=1)
    batches = list(itertools.islice(loader, 3))
    assert counted(batches)[1] == 0
    assert loader.mix()['prose'].promised == 0
    resumed = packed(counted_folder, schedule=proportions, epoch_size=60, lanes=1, batch=1)
    state = loader.state_dict()
    resumed.load_state_dict({**state, 'sample_in_epoch': 60})
    later = list(itertools.islice(resumed, 20))
    assert counted(later)[1] > 0
    assert 0 < resumed.mix()['prose'].promised <= sum(counted(later))
