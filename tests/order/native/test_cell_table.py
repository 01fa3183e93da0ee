"""The tracks, against a simulation that walks row by row as their description says."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import given

from headrace.order.native import cell_table as tracks_module
from headrace.order.native.cell_table import CellTable, Parts
from headrace.order.random.feistel import column_bits, feistel_permute
from headrace.order.random.hashing import derive, hashes, keyed_order
from tests.support.orders.native_orders import added_cells
from tests.support.orders.order_cases import relaxed


def permuted(x: int, n: int, key: int) -> int:
    arrays = [np.array([a], np.uint64) for a in (x, n, int(column_bits(np.array([n]))[0]), key)]
    return int(feistel_permute(*arrays)[0])


def simulated(parts: Parts, block: int, key: int) -> list[int]:
    order = keyed_order(key, len(parts.sizes)).tolist()
    total = int(parts.sizes.sum())
    mean = -(-total // len(order))
    units = []  # (part, samples of the part before, samples)
    for part in order:
        size = int(parts.sizes[part])
        pieces = 1 if block >= total else ceil(Fraction(2 * size, 3 * mean))
        cuts = [size * i // pieces for i in range(pieces + 1)]
        units += [(part, a, b - a) for a, b in pairwise(cuts)]
    open_in_py1e = Fraction(sum(max(int(size), block) for size in parts.sizes), total)
    num_tracks = 1 if block >= total else min(len(units), max(1, ceil(open_in_py1e - Fraction(1, 32))))

    phase = derive(key, 2)
    unit_at = [i for i, (_, _, size) in enumerate(units) for _ in range(size)]
    first = (phase >> 32) * total // num_tracks >> 32
    hit = {unit_at[first + track * total // num_tracks] for track in range(num_tracks)}
    units = [units[i] for i in sorted(hit)] + [unit for i, unit in enumerate(units) if i not in hit]
    ages = [units[track][2] * (16 * track + phase % 16) // (16 * num_tracks) for track in range(num_tracks)]
    free = [max(ages) - age for age in ages]
    opens = list(free)
    tracks: list[list[tuple[int, int, int, int]]] = [[] for _ in opens]  # (first row, part, before, samples)
    for part, before, size in units:
        # Each of the first units has a track of its own, however early another one ends.
        empty = [track for track in range(num_tracks) if not tracks[track]]
        track = empty[0] if empty else min(range(num_tracks), key=lambda i: (free[i], i))
        tracks[track].append((free[track], part, before, size))
        free[track] += size

    by_opening = sorted(range(num_tracks), key=lambda i: (opens[i], i))
    by_closing = sorted(range(num_tracks), key=lambda i: (-free[i], i))
    begin, end = opens[by_opening[num_tracks // 2]], free[by_closing[num_tracks // 2]]
    end = max(end, ceil(Fraction(begin + max(free), 2)))
    begin = min(begin, (end + min(opens)) // 2)

    def row_of(row: int, ranked: list[int]) -> list[tuple[int, int]]:
        """Part and number of the draw, of each track that is open in a row."""
        return [
            (part, int(parts.skipped[part]) + before + row - first)
            for track in ranked
            for first, part, before, size in tracks[track]
            if first <= row < first + size
        ]

    rows: list[tuple[list[tuple[int, int]], int]] = []  # the row's draws, and a state that is the same within a run
    for row in range(begin, end):
        ranked = by_closing if row >= min(free) else by_opening
        folded = row_of(2 * begin - 1 - row, by_opening), row_of(2 * end - 1 - row, by_closing)
        rows.append((row_of(row, ranked) + folded[0] + folded[1], row))
    edges = sorted({*opens, *free, begin, *(2 * begin - row for row in opens), *(2 * end - row for row in free)})
    edges = [row for row in edges if begin <= row < end]
    if block >= total:
        rows, edges = [([draw for draws, _ in rows for draw in draws], 0)], [0]
    samples = []
    for draws, row in rows:
        run = max(i for i, edge in enumerate(edges) if edge <= row)
        run_key = int(hashes(derive(key, 1), np.array([run]))[0])
        row_key = (run_key + (row - edges[run]) * int(tracks_module.ROW_STEP)) % 2**64
        for slot in range(len(draws)):
            part, drawn = draws[permuted(slot, len(draws), row_key)]
            at = permuted(drawn, int(parts.shard_sizes[part]), int(parts.keys[part]))
            samples.append(int(parts.starts[part]) + at)
    return samples


@relaxed
@given(added_cells)
def test_each_position_is_what_walking_there_gives(added: list[tuple[Parts, int, int]]) -> None:
    table = CellTable()
    numbers = [table.add(*cell) for cell in added]
    assert numbers == list(range(len(added)))
    for number, (parts, block, key) in zip(numbers, added, strict=True):
        positions = np.arange(int(parts.sizes.sum()))
        got = table.at(np.full(len(positions), number), positions)
        assert got.tolist() == simulated(parts, block, key)


def equal_shards(count: int, size: int) -> Parts:
    sizes = np.full(count, size)
    return Parts(sizes, sizes * 0, np.cumsum(sizes) - sizes, sizes, column_bits(sizes), hashes(1, np.arange(count)))


@pytest.mark.parametrize(('block', 'tracks'), [(40, 1), (50, 1), (51, 1), (60, 2), (500, 10), (4000, 80)])
def test_no_more_shards_are_in_use_than_the_block_needs(block: int, tracks: int) -> None:
    table = CellTable()
    cell = table.add(equal_shards(100, 50), block, 1)
    shards = table.at(np.full(5000, cell), np.arange(5000)) // 50
    uses = [(shards == shard).nonzero()[0] for shard in range(100)]
    open_at = sum(np.bincount(np.arange(u[0], u[-1] + 1), minlength=5000) for u in uses)
    assert open_at.max() <= tracks


def test_a_row_has_a_sample_of_each_track() -> None:
    table = CellTable()
    cell = table.add(equal_shards(200, 50), 1000, 1)
    rows = (table.at(np.full(8000, cell), np.arange(1000, 9000)) // 50).reshape(-1, 20)
    assert all(len(set(row)) == 20 for row in rows.tolist())
