"""Batches of packed sequences."""

from __future__ import annotations

from headrace import PADDING
from tests.support.packings.packed_orders import expected, make, unpadded, world


def test_rows_that_fill_up_the_last_batch_are_empty(many_documents):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 12, lanes=6)
    _, (state, _) = world(folder, 2, None, 1, exchange=True, lanes=6, sequences_per_epoch=12)
    found: list[list[int]] = []
    for rank in range(3):
        loader = make(folder, lanes=6, sequences_per_epoch=12, rank=rank, ranks=3, batch=6, remainder='exact')
        loader.load_state_dict(state)
        for batch in loader:
            is_padding = batch[PADDING].tolist()
            assert [used == 0 for used in batch['num_tokens'].tolist()] == is_padding
            found += [row for row in unpadded(batch) if row]
    assert sorted(found) == sorted(whole[4:])
