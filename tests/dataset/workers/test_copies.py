"""Datasets whose parts cannot go to workers."""

from __future__ import annotations

import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError
from headrace.packing import PackedDataset, Packing


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
