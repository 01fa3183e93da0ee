"""Processes of a rank: their prefetch."""

from __future__ import annotations

import pytest

from headrace.dataset.prefetch.prefetcher import Prefetcher
from tests.support.datasets.simulated import SHARDS


def test_a_prefetch_leaves_the_share_of_a_limit_that_a_real_one_leaves(simulated_run):
    size = simulated_run().dataset_bytes
    simulated = simulated_run(loader={'cache_limit': size + size // SHARDS}, step_seconds=1.0)
    assert simulated.steps[0].cached <= 0.75 * (size + size // SHARDS) < size
    assert simulated.fetched_shards == SHARDS


@pytest.mark.parametrize(('workers', 'persistent', 'made'), [(0, False, 1), (2, False, 4), (2, True, 2)])
def test_a_prefetch_lives_as_long_as_its_process(simulated_run, monkeypatch, workers, persistent, made):
    prefetchers = []

    class Counted(Prefetcher):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            prefetchers.append(self)

    monkeypatch.setattr('headrace.simulate.reader.Prefetcher', Counted)
    loader = {'loader': {'num_workers': workers, 'persistent_workers': persistent}}
    simulated_run(epochs=2, loader=loader)
    assert len(prefetchers) == made
