"""Worker processes of a loader: start methods, states, errors and ends."""

from __future__ import annotations

import gc
import itertools
import sys

import pytest

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ResumeError
from tests.support.orders.mixtures import GLOBAL_BATCH


@pytest.mark.parametrize(
    ('context', 'persistent'),
    [
        ('fork', False),
        ('fork', True),
        ('spawn', True),
        pytest.param('forkserver', True, marks=pytest.mark.slow),
        pytest.param('spawn', False, marks=pytest.mark.slow),
        pytest.param('forkserver', False, marks=pytest.mark.slow),
    ],
)
def test_start_methods_and_persistence_change_nothing(mix, context, persistent):
    loader = mix(Topology(), 0)
    expected = [[batch['id'].tolist() for batch in loader] for _ in range(3)]
    other = StreamingDataLoader(
        mix(Topology(), 0).dataset, num_workers=2, multiprocessing_context=context, persistent_workers=persistent
    )
    assert [[batch['id'].tolist() for batch in other] for _ in range(3)] == expected


def test_persistent_workers_follow_a_state_that_is_loaded_later(mix):
    loader = StreamingDataLoader(mix(Topology(), 0).dataset, num_workers=2, persistent_workers=True)
    first = [batch['id'].tolist() for batch in loader]
    taken = mix(Topology(), 0)
    next(itertools.islice(taken, 3, None))
    loader.load_state_dict(taken.state_dict())
    assert [batch['id'].tolist() for batch in loader] == first[4:]


def test_what_was_prefetched_but_not_handed_out_does_not_count(mix):
    loader = mix(Topology(), 2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    assert loader.state_dict()['sample_in_epoch'] == 3 * GLOBAL_BATCH


def test_a_getitem_that_fails_in_a_worker_arrives_as_itself(make_dataset):
    class Broken(StreamingDataset):
        def __getitem__(self, at):
            raise ResumeError('told you')

    loader = StreamingDataLoader(Broken(local=str(make_dataset()), batch_size=4), num_workers=1)
    with pytest.raises(ResumeError, match='told you'):
        next(iter(loader))


def test_a_worker_init_fn_that_raises_stop_iteration_fails(mix):
    loader = StreamingDataLoader(mix(Topology(), 0).dataset, num_workers=2, worker_init_fn=lambda _: next(iter(())))
    with pytest.raises(RuntimeError, match='A `worker_init_fn` raised StopIteration'):
        list(loader)


@pytest.mark.parametrize('persistent_workers', [False, True])
def test_workers_of_an_abandoned_cycle_end_well(mix, monkeypatch, persistent_workers):
    # A traceback makes such a cycle, of a test that fails or of an error that somebody keeps.
    gc.collect()  # what other tests left
    failed = []
    monkeypatch.setattr(sys, 'unraisablehook', lambda unraisable: failed.append(str(unraisable.exc_value)))
    loader = StreamingDataLoader(mix(Topology(), 0).dataset, num_workers=2, persistent_workers=persistent_workers)
    batches = iter(loader)
    next(batches)
    cycle = [batches, loader]
    cycle.append(cycle)
    del batches, loader, cycle
    gc.collect()
    assert not [error for error in failed if 'Bad file descriptor' in error]
