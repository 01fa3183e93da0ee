from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.packing.bin_packing import best_fit, concatenate


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


@given(st.lists(st.integers(1, 9), min_size=1), st.data())
def test_concatenated_pieces_fill_one_bin(lengths, data):
    capacity = data.draw(st.integers(1, sum(lengths)))
    numbers, used = concatenate(lengths, capacity)
    assert numbers == [*range(len(numbers))]
    assert 1 <= used <= lengths[numbers[-1]]
    assert sum(lengths[number] for number in numbers[:-1]) + used == capacity
