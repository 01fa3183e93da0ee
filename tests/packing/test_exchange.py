"""Names of documents, exchanged among ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.packings.huge_batches import HUGE
from tests.support.packings.packed_streams import packed, told, unpadded


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
