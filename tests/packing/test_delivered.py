"""Documents of the latest sequences."""

from __future__ import annotations

from tests.support.packings.huge_batches import HUGE
from tests.support.packings.packed_streams import packed


def test_all_documents_of_a_huge_batch_are_known(explained_folder):
    loader, asked = packed(explained_folder, **HUGE), packed(explained_folder, **HUGE)
    next(iter(loader))
    own = loader.dataset.explain(loader.plan(), 0, reads_data=False)
    read = asked.dataset.explain(asked.plan(), 0)
    assert own.is_known.all()
    assert read.is_known.all()
    assert read.ids.tolist() == own.ids.tolist()
