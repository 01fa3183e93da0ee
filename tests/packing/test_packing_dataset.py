"""Datasets of packed documents that are refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace import StreamingDataLoader
from headrace.errors import ConfigError, EmptyDatasetError
from tests.support.packings.counted_packings import counted
from tests.support.packings.huge_batches import HUGE
from tests.support.packings.packed_streams import packed, told, unpadded
from tests.support.packings.refused_packings import dataset


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'column': 'text'}, "takes documents from column 'text', but .* has id, tokens. Set `column`"),
        ({'shuffle_algo': 'py1e', 'shuffle': True}, "`shuffle_algo` must be 'native' with packing, but is 'py1e'"),
        (
            {'on_mixture_change': 'continue', 'sequences_per_epoch': 'all'},
            "`on_mixture_change` must be 'refuse' with sequences_per_epoch 'all', but is 'continue'",
        ),
        ({'lanes': 16}, 'there are 16 lanes and 12 samples'),
    ],
)
def test_datasets(document_folder, options, message):
    with pytest.raises(ConfigError, match=message):
        dataset(document_folder, batch_size=2, **options)


def test_documents_without_tokens(document_folder):
    empty = dataset(document_folder, tokenizer=lambda values: [[] for _ in values], column='tokens')
    with pytest.raises(EmptyDatasetError, match="100 in a row of one lane have none. Check column 'tokens'"):
        next(iter(StreamingDataLoader(empty, batch_size=2)))


def test_ranks_share_the_names_of_their_documents(explained_folder):
    loaders = [packed(explained_folder, rank=rank, ranks=2) for rank in range(2)]
    each = [list(itertools.islice(loader, 6)) for loader in loaders]
    plan, dataset = loaders[0].plan(), loaders[0].dataset
    tables: list[Any] = []
    batches = [(plan, 3), (plan, 4)]
    loaders[1].dataset.share_documents(batches, lambda own: tables.append(own) or [])
    dataset.share_documents(batches, lambda own: [own, tables[0]])
    for k in (3, 4):
        explanation = dataset.explain(plan, k, reads_data=False)
        assert explanation.is_known.all()
        assert told(explanation) == [row for one in each for row in unpadded(one[k])]
    assert not dataset.explain(plan, 2, reads_data=False).is_known.all()


@pytest.mark.slow
def test_ranks_share_the_documents_of_a_huge_batch(explained_folder):
    ranks = [packed(explained_folder, rank=rank, ranks=2, **HUGE) for rank in range(2)]
    for of_rank in ranks:
        next(iter(of_rank))
    tables: list[Any] = []
    plan = ranks[0].plan()
    ranks[1].dataset.share_documents([(plan, 0)], lambda own: tables.append(own) or [])
    ranks[0].dataset.share_documents([(plan, 0)], lambda own: [own, tables[0]])
    assert ranks[0].dataset.explain(plan, 0, reads_data=False).is_known.all()


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
