"""Documents of a batch of sequences."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.packing import batch_of, flat_cu_seqlens
from headrace.packing.lane import Piece


def pieces(lengths: list[int]) -> list[Piece]:
    return [
        Piece(number, 0, np.arange(100 * number, 100 * number + length, dtype=np.int32), None)
        for number, length in enumerate(lengths, 1)
    ]


def test_a_batch():
    labelled = Piece(5, 3, np.array([8, 9], np.int32), np.array([-100, 9], np.int32))
    batch = batch_of([pieces([3, 2]), [*pieces([2]), labelled, *pieces([2])]], 6, 77)
    assert {name: (value.dtype, value.tolist()) for name, value in batch.items()} == {
        'input_ids': (torch.int64, [[100, 101, 102, 200, 201, 77], [100, 101, 8, 9, 100, 101]]),
        'labels': (torch.int64, [[-100, 101, 102, -100, 201, -100], [-100, 101, -100, 9, -100, 101]]),
        'position_ids': (torch.int64, [[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 0, 1]]),
        'cu_seqlens': (torch.int32, [[0, 3, 5, 6], [0, 2, 4, 6]]),
        'num_tokens': (torch.int64, [5, 6]),
    }
    flat, longest = flat_cu_seqlens(batch['cu_seqlens'])
    assert (flat.tolist(), longest) == ([0, 3, 5, 6, 8, 10, 12], 3)


ROWS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4)


@given(ROWS)
def test_boundaries_are_those_of_a_slow_count(rows):
    size = max(map(sum, rows))
    batch = batch_of([pieces(row) for row in rows], size, 0)
    flat, longest = flat_cu_seqlens(batch['cu_seqlens'])
    lengths = [length for row in rows for length in [*row, size - sum(row)] if length]
    assert flat.tolist() == np.cumsum([0, *lengths]).tolist()
    assert flat.dtype == torch.int32
    assert longest == max(lengths)
    starts = flat[:-1].tolist()
    assert (batch['position_ids'].flatten() == 0).nonzero().flatten().tolist() == starts
    assert batch['num_tokens'].tolist() == [sum(row) for row in rows]
    # A part of the rows is a batch of its own.
    for number, row in enumerate(rows):
        part, _ = flat_cu_seqlens(batch['cu_seqlens'][number : number + 1])
        assert part.tolist() == np.cumsum([0, *row, *([size - sum(row)] if sum(row) < size else [])]).tolist()


@given(ROWS)
def test_attention_within_pieces_sees_no_other_document(rows):
    size = max(map(sum, rows))
    batch = batch_of([pieces(row) for row in rows], size, 0)
    flat, _ = flat_cu_seqlens(batch['cu_seqlens'])
    tokens = batch['input_ids'].flatten().tolist()
    kept = batch['labels'].flatten() != -100
    for begin, end in zip(flat[:-1].tolist(), flat[1:].tolist(), strict=True):
        assert len({token // 100 for token in tokens[begin:end]}) == 1
        # The first token of a piece is foretold by nothing in it.
        assert not kept[begin]
