"""A machine's cache: its limit, and what an epoch finds in it."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.dataset.prefetch.prefetcher import Prefetcher
from tests.support.datasets.simulated import SAMPLES, SHARDS


def test_a_second_epoch_finds_the_cache(simulated_run):
    simulated = simulated_run(epochs=2)
    assert len(simulated.steps) == 2 * SAMPLES / 8
    assert simulated.fetched_shards == SHARDS
    assert simulated.epoch_fetched_bytes == 0


def test_a_limit_costs_fetches_and_is_kept(simulated_run):
    whole = simulated_run(loader={'shuffle': True})
    limit = whole.dataset_bytes // 2
    simulated = simulated_run(epochs=2, loader={'shuffle': True, 'cache_limit': limit, 'shuffle_block_size': 40})
    assert simulated.fetched_shards > SHARDS
    assert simulated.cache_bytes <= limit


def test_a_limit_is_kept_where_a_batch_needs_more(simulated_run):
    size = simulated_run().dataset_bytes
    loader = {'shuffle': True, 'cache_limit': size // 3}
    simulated = simulated_run(epochs=2, loader=loader, ranks=2, workers=2, bandwidth=1e6, latency=0.01)
    assert simulated.cache_bytes <= size // 3
    assert len(simulated.steps) == 2 * SAMPLES / 8


def test_the_cache_holds_the_compressed_files_that_it_keeps(simulated_run, tmp_path):
    with MDSWriter(out=str(tmp_path / 'zip'), columns={'x': 'ndarray:uint8:1000'}, compression='zstd') as writer:
        writer.write_batch({'x': np.zeros((SAMPLES, 1000), np.uint8)})
    packed = {'remote': str(tmp_path / 'zip')}
    plain, kept = simulated_run(loader=packed), simulated_run(loader={**packed, 'keep_zip': True})
    assert plain.fetched_bytes == kept.fetched_bytes == kept.dataset_bytes
    assert kept.cache_bytes - plain.cache_bytes == kept.dataset_bytes


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

    monkeypatch.setattr('headrace.simulate.node.Prefetcher', Counted)
    loader = {'loader': {'num_workers': workers, 'persistent_workers': persistent}}
    simulated_run(epochs=2, loader=loader)
    assert len(prefetchers) == made
