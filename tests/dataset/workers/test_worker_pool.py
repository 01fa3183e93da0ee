"""Worker processes of a loader: start methods, states, errors and ends."""

from __future__ import annotations

import gc
import itertools
import sys

import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError
from headrace.packing import PackedDataset, Packing
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


class WithLambda(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.augment = {'flip': lambda sample: sample}

    def get_item(self, sample_id, retry=7):
        return self.augment['flip'](super().get_item(sample_id, retry))


class WithUnusedLambda(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.told = lambda: None


@pytest.mark.parametrize('method', ['spawn', 'forkserver'])
@pytest.mark.parametrize(
    ('dataset', 'loader', 'message'),
    [
        ({}, {'collate_fn': lambda samples: samples}, r'collate_fn \(<function <lambda>'),
        ({}, {'worker_init_fn': lambda worker: None}, r'worker_init_fn \(<function <lambda>'),
        ({'cls': WithLambda}, {}, r"dataset.augment\['flip'\] \(<function WithLambda.*lambda"),
    ],
    ids=['collate_fn', 'worker_init_fn', 'transform'],
)
def test_a_lambda_that_cannot_go_to_workers(make_dataset, method, dataset, loader, message):
    cls = dataset.get('cls', StreamingDataset)
    made = StreamingDataLoader(
        cls(local=str(make_dataset()), batch_size=4), num_workers=1, multiprocessing_context=method, **loader
    )
    with pytest.raises(ConfigError, match=rf"started by '{method}' get copies by pickle, and {message}.*top level"):
        next(iter(made))


def test_a_tokenizer_that_cannot_go_to_workers(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'text': 'str'}) as writer:
        for _ in range(4):
            writer.write({'text': 'x'})
    packing = Packing(sequence_length=4, sequences_per_epoch=4, lanes=4, tokenizer=lambda texts: [[1]] * len(texts))
    dataset = PackedDataset(local=str(tmp_path), batch_size=4, packing=packing)
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context='spawn')
    with pytest.raises(ConfigError, match=r'dataset.packing\[0\].tokenizer \(<function'):
        next(iter(loader))


def test_a_dataset_that_changes_no_sample_does_not_go_to_workers(make_dataset):
    dataset = WithUnusedLambda(local=str(make_dataset(samples=8)), batch_size=4)
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context='spawn')
    assert len(list(loader)) == 2


def test_a_lambda_is_good_for_forked_workers(make_dataset):
    dataset = WithLambda(local=str(make_dataset(samples=8)), batch_size=4)
    loader = StreamingDataLoader(
        dataset, num_workers=1, multiprocessing_context='fork', collate_fn=lambda samples: len(samples)
    )
    assert list(loader) == [4, 4]
