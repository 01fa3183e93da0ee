"""The last batches of an epoch prefetch the first shards of the next one, if there is a next one."""

from __future__ import annotations

import gc
import itertools
import time
import weakref

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset.reading.batch_reader import PassRequest
from tests.support.programs.waiting import until

SAMPLES, IN_SHARD, BATCH = 400, 20, 8
SHARDS = SAMPLES // IN_SHARD


@pytest.fixture(scope='module')
def remote(tmp_path_factory):
    folder = tmp_path_factory.mktemp('remote')
    with MDSWriter(out=str(folder), columns={'id': 'int', 'x': 'ndarray:int32:400'}, size_limit=32_500) as writer:
        for number in range(SAMPLES):
            writer.write({'id': number, 'x': np.full(400, number, np.int32)})
    assert len(list(folder.glob('*.mds'))) == SHARDS
    return folder


@pytest.fixture
def make(remote, tmp_path):
    """A loader; when an epoch is read, the cache has not what the next one begins with."""

    def loader(**options):
        dataset = StreamingDataset(
            remote=str(remote),
            local=str(tmp_path / 'l'),
            cache_limit=12 * 33_000,
            shuffle=True,
            shuffle_block_size=20,
            num_canonical_nodes=2,
            batch_size=BATCH,
        )
        return StreamingDataLoader(dataset, **options)

    return loader


def of_epoch(loader, epoch):
    """Sample ids of an epoch's batches."""
    plan = loader.plan(epoch)
    return [plan.ids(number).tolist() for number in range(plan.num_batches)]


def is_there(loader, ids):
    shards, _ = loader.dataset.locate(np.asarray(ids))
    return all(map(loader.dataset.pool.shards.cached.is_present, set(shards.tolist())))


@pytest.mark.parametrize('workers', [0, 1, 2])
def test_the_first_shards_of_the_next_epoch_are_there_when_it_begins(make, workers):
    loader = make(num_workers=workers, persistent_workers=workers > 0, max_epochs=3)
    # Before anything is read, as it settles what is.
    wanted = [of_epoch(loader, epoch) for epoch in range(3)]
    for epoch, (this, following) in enumerate(itertools.pairwise([*wanted, []])):
        got = []
        for batch in loader:
            got.append(batch['id'].tolist())
            if len(got) == len(this):
                until(lambda after=following: not after or is_there(loader, after[0] + after[1]))
        assert got == this, epoch


@pytest.mark.parametrize('options', [{}, {'max_epochs': 1}, {'max_epochs': 2, 'num_workers': 1}])
def test_else_nothing_is_fetched_that_the_epoch_does_not_read(make, options):
    """Where nobody says that another epoch follows, or workers end with this one."""
    loader = make(**options)
    wanted, following = of_epoch(loader, 0), of_epoch(loader, 1)
    got = []
    for batch in loader:
        got.append(batch['id'].tolist())
        if len(got) == len(wanted):  # workers and what they fetch live on until the next one is asked for
            time.sleep(0.5)
            assert not is_there(loader, following[0] + following[1])
    assert got == wanted


def test_a_pass_that_is_left_begins_the_next_epoch_as_ever(make):
    loader = make(num_workers=1, persistent_workers=True, max_epochs=2)
    wanted = of_epoch(loader, 1)
    plan = loader.plan(0)
    for number, _ in enumerate(loader):
        if number == plan.num_batches - 2:  # the look-ahead is in the next epoch
            break
    assert [batch['id'].tolist() for batch in loader] == wanted


def test_a_state_loaded_in_between_holds(make):
    loader = make(num_workers=1, persistent_workers=True, max_epochs=5)
    wanted = [of_epoch(loader, epoch) for epoch in (0, 1, 3)]
    state = {**loader.state_dict(), 'epoch': 1, 'sample_in_epoch': 5 * loader.global_batch_size}
    assert [batch['id'].tolist() for batch in loader] == wanted[0]
    loader.load_state_dict({**loader.state_dict(), 'epoch': 3, 'sample_in_epoch': 0})
    assert [batch['id'].tolist() for batch in loader] == wanted[2]
    loader.load_state_dict({**state, 'epoch': 0, 'sample_in_epoch': 0})
    assert [batch['id'].tolist() for batch in loader] == wanted[0]
    loader.load_state_dict(state)  # in the epoch that was looked into, but not at its beginning
    assert [batch['id'].tolist() for batch in loader] == wanted[1][5:]


def test_a_loader_with_workers_does_not_keep_the_order_of_an_epoch_that_is_over(make):
    """It may hold a permutation, whose file stays as long."""
    loader = make(num_workers=1, persistent_workers=True)
    list(loader)
    order = weakref.ref(loader.handed_out[0].order)
    list(loader)
    gc.collect()
    assert order() is None


def test_nor_does_a_worker(make):
    loader = make()
    spec, keys = loader.dataset.batch_spec(), []
    for epoch in range(2):
        asked = PassRequest(batches=spec, place=(epoch, 0), collate_fn=None, mark_streams=False, continues=True)
        begun = loader.dataset.begin_batches(asked)
        if not epoch:
            reader, order = begun.reader, weakref.ref(begun.plan.order)
        keys = list(begun.keys)
        for key in keys:
            reader[key]
            if key.number == len(keys) - 1 and not epoch:
                until(lambda: is_there(loader, loader.plan(1).ids(0)))
    del begun
    gc.collect()
    assert order() is None
