"""A lane that restarts from one of its states delivers the same sequences."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.packing import Packing
from headrace.packing.lane import START, Document, Lane, LaneState
from headrace.packing.settings import Method


def rows_of(
    packing: Packing, lengths: list[int], window: int, state: LaneState
) -> tuple[list[object], list[LaneState]]:
    """The sequences from a state on, as pieces (document, begin, tokens), and the states between them."""
    lane = Lane(packing, state, window=window, first_window=window, documents=len(lengths))
    documents = [Document(np.arange(length, dtype=np.int32)) for length in lengths]
    rows: list[object] = []
    received = [lane.missing] if lane.missing else []
    for numbers in [*received, *((number,) for number in range(lane.received, len(documents)))]:
        lane.receive(numbers, [documents[number] for number in numbers])
        while lane.rows_ahead:
            pieces = lane.take(lane.next_row)
            rows.append([(piece.document, piece.begin, piece.tokens.tolist()) for piece in pieces])
    return rows, list(lane.states)


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
@pytest.mark.parametrize('window', [1, 2, 3])
def test_it_continues_from_any_state(method: Method, window: int) -> None:
    packing, rng = Packing(sequence_length=16, method=method), np.random.default_rng(window)
    # The third document fills two sequences with the first two, of which one waits.
    drawn = [rng.integers(0, 40, 60).tolist() for _ in range(5)]
    for lengths in ([9, 4, 19, 7, 3, 12, 5, 16, 2, 30, 11], *drawn):
        rows, states = rows_of(packing, lengths, window, START)
        assert len(states) > 1
        for state in states:
            assert rows_of(packing, lengths, window, state)[0] == rows[state.row :]
