"""A machine's cache: its limit, and what an epoch finds in it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.simulate.node import Owners
from headrace.storage.cache.ownership import Ownership, SharedShards, hash_of
from headrace.storage.cache.peer_options import PORT
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


def test_a_cache_that_is_not_full_yet_is_noted(simulated_run):
    loader = {'shuffle': True, 'cache_limit': simulated_run().dataset_bytes // 2, 'shuffle_block_size': 40}
    early, whole = simulated_run(loader=loader, batches=2), simulated_run(loader=loader)
    assert early.epoch_fetched_bytes == early.planned_bytes == early.dataset_bytes
    assert [note.split(',')[0] for note in early.notes()] == ['no shard was evicted in the simulated steps']
    assert whole.notes() == []


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


@pytest.mark.parametrize('limit', [None, 1, 900, 1600, 2500])
def test_owners_are_those_of_real_peers(limit):
    nodes, sizes = [(f'node-{number}', PORT) for number in range(5)], np.random.default_rng(0).integers(1, 200, 60)
    owners = Owners(sizes, len(nodes), limit)
    room = math.inf if limit is None else limit
    shards = SharedShards.of('', map(str, range(60)), sizes)
    ownership = Ownership(dict.fromkeys(nodes, room), shards)
    for number in range(60):
        shard = hash_of('', str(number))
        assert owners.is_kept[number] == (ownership.keeper(shard) is not None)
        assert nodes[owners.owner[number]] == ownership.order(shard)[0]
    assert Owners(sizes, len(nodes), owners.limit_for_all).is_kept.all()


def test_a_shard_is_gone_once_its_owner_has_fetched_others_into_its_place():
    owners = Owners(np.full(3, 100), 1, 290)
    kept, *others = np.argsort(~owners.is_kept, kind='stable').tolist()
    assert owners.is_kept.tolist().count(True) == 0 or owners.is_kept[kept]
    first, second = others
    assert not owners.is_kept[others].any()
    assert [owners.ask(first, at, 2.0) for at in (10.0, 11.5, 13.0)] == [2.0, 0.5, 0.0]
    assert owners.ask(second, 13.0, 2.0) == 2.0
    assert owners.requests == 1
    assert owners.ask(first, 14.0, 2.0) == 2.0
    assert owners.requests == 1.5
    owners.count_anew()
    assert owners.requests == 1
