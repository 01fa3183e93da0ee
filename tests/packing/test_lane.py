"""A lane that restarts from one of its states delivers the same sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.packing import Packing
from headrace.packing.lane import START, Document, Lane, LaneState, best_fit
from headrace.packing.settings import Method


def rows_of(
    packing: Packing, lengths: list[int], window: int, state: LaneState
) -> tuple[list[list[tuple[int, int, list[int]]]], list[LaneState]]:
    """The sequences from a state on, as pieces (document, begin, tokens), and the states between them."""
    window = min(window, packing.rows_per_window)
    lane = Lane(packing, state, window=window, first_window=window, documents=len(lengths))
    documents = [Document(np.arange(length, dtype=np.int32)) for length in lengths]
    rows: list[list[tuple[int, int, list[int]]]] = []
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


@given(st.integers(1, 50).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(1, size), min_size=1))))
def test_best_fit_puts_each_piece_into_one_bin_that_holds_it(case):
    capacity, lengths = case
    bins = best_fit(lengths, capacity)
    assert sorted(sum(bins, [])) == [*range(len(lengths))]
    assert all(sum(lengths[number] for number in found) <= capacity for found in bins)
    assert all(found == sorted(found) for found in bins)
    assert [found[0] for found in bins] == sorted(found[0] for found in bins)
    # The bound of best fit decreasing, over what no packing can beat.
    fewest = math.ceil(sum(lengths) / capacity)
    fewest = max(fewest, sum(2 * length > capacity for length in lengths))
    assert len(bins) <= 11 / 9 * _fewest(lengths, capacity) + 1 if len(lengths) <= 7 else len(bins) >= fewest


def _fewest(lengths: list[int], capacity: int) -> int:
    """By trying everything."""

    def place(rest: list[int], rooms: list[int]) -> int:
        if not rest:
            return len(rooms)
        found = [
            place(rest[1:], [*rooms[:at], room - rest[0], *rooms[at + 1 :]])
            for at, room in enumerate(rooms)
            if room >= rest[0]
        ]
        return min([*found, place(rest[1:], [*rooms, capacity - rest[0]])])

    return place(lengths, [])


def test_a_longer_piece_goes_into_the_fullest_bin_that_has_room():
    assert best_fit([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert best_fit([2, 8, 3, 7], 10) == [[0, 1], [2, 3]]


@given(st.integers(2, 9), st.lists(st.integers(0, 30)))
def test_concatenated_documents_follow_one_another(size: int, lengths: list[int]) -> None:
    rows, _ = rows_of(Packing(sequence_length=size, method='concatenate'), lengths, 1, START)
    tokens = [[(number, at) for at in range(length)] for number, length in enumerate(lengths)]
    together = sum(tokens, [])
    expected = [together[begin : begin + size] for begin in range(0, len(together) // size * size, size)]
    assert [[(number, at) for number, _, found in row for at in found] for row in rows] == expected
