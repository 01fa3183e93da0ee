"""The lanes, against a simulation that walks row by row as their description says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from order_cases import relaxed

from headrace.order.hashing import derive, hashes, keyed_order
from headrace.order.permute import column_bits, permute
from headrace.order.shuffle import lanes
from headrace.order.shuffle.lanes import CellTable, Parts


def permuted(x: int, n: int, key: int) -> int:
    arrays = [np.array([a], np.uint64) for a in (x, n, int(column_bits(np.array([n]))[0]), key)]
    return int(permute(*arrays)[0])


def simulated(parts: Parts, block: int, key: int) -> list[int]:
    order = keyed_order(key, len(parts.sizes)).tolist()
    total = int(parts.sizes.sum())
    mean = -(-total // len(order))
    units = []  # (part, samples of the part before, samples)
    for part in order:
        size = int(parts.sizes[part])
        pieces = -(-size // mean) if 2 * size > 3 * mean else 1
        cuts = [size * i // pieces for i in range(pieces + 1)]
        units += [(part, a, b - a) for a, b in pairwise(cuts)]
    num_lanes = 1 if block >= total else min(len(units), max(1, block // mean))
    opens = [lane * mean // num_lanes for lane in range(num_lanes)]
    free = list(opens)
    queues: list[list[tuple[int, int, int, int]]] = [[] for _ in range(num_lanes)]  # (first row, part, before, samples)
    for part, before, size in units:
        lane = min(range(num_lanes), key=lambda i: (free[i], i))
        queues[lane].append((free[lane], part, before, size))
        free[lane] += size
    used = [lane for lane in range(num_lanes) if queues[lane]]
    ends = {lane: free[lane] for lane in used}
    first_end = min(ends.values())
    line, rows = [], []
    for row in range(max(ends.values())):
        late = row >= first_end
        for lane in sorted(used, key=lambda i: (-ends[i], i)) if late else used:
            for first, part, before, size in queues[lane]:
                if first <= row < first + size:
                    line.append((part, int(parts.skipped[part]) + before + row - first))
                    rows.append(row)
    head = sum(row < mean // 2 for row in rows)
    tail = sum(row < first_end for row in rows)
    widest = max(rows.count(row) for row in set(rows))
    chunk = min(block, max(lanes._MIN_CHUNK, lanes._ROWS_PER_CHUNK * widest))
    if block >= total or tail <= head:
        bands = [[(0, total)]]
    elif tail - head < chunk:
        bands = [[(0, head)], [(head, total)]]
    else:
        cuts = [head + i * chunk for i in range((tail - head) // chunk)]
        regular = [(a, a + chunk) for a in cuts[:-1]]
        bands = [[(0, head)], regular, [(cuts[-1], tail)], [(tail, total)]]
    chunks = [[(a, b) for a, b in band if b > a] for band in bands]
    samples = []
    for i, band in enumerate(band for band in chunks if band):
        band_key = int(hashes(derive(key, 1), np.array([i]))[0])
        for number, (a, b) in enumerate(band):
            for j in range(b - a):
                chunk_key = (band_key + number * int(lanes._CHUNK_STEP)) % 2**64
                part, drawn = line[a + permuted(j, b - a, chunk_key)]
                at = permuted(drawn, int(parts.shard_sizes[part]), int(parts.keys[part]))
                samples.append(int(parts.starts[part]) + at)
    return samples


@st.composite
def cells(draw: st.DrawFn) -> Parts:
    sizes = np.array(draw(st.lists(st.integers(1, 9) | st.integers(20, 40), min_size=1, max_size=8)))
    skipped, after = (np.array([draw(st.integers(0, 2)) for _ in sizes]) for _ in range(2))
    shards = skipped + sizes + after
    return Parts(
        sizes=sizes,
        skipped=skipped,
        starts=np.cumsum(shards) - shards,
        shard_sizes=shards,
        bits=column_bits(shards),
        keys=hashes(draw(st.integers(0, 9)), np.arange(len(sizes))),
    )


@settings(relaxed, max_examples=30)
@given(st.lists(st.tuples(cells(), st.integers(1, 30) | st.just(1000), st.integers(0, 99)), min_size=1, max_size=3))
def test_each_position_is_what_walking_there_gives(added: list[tuple[Parts, int, int]]) -> None:
    minimum, lanes._MIN_CHUNK = lanes._MIN_CHUNK, 8
    rows, lanes._ROWS_PER_CHUNK = lanes._ROWS_PER_CHUNK, 2
    try:
        table = CellTable()
        numbers = [table.add(*cell) for cell in added]
        assert numbers == list(range(len(added)))
        for number, (parts, block, key) in zip(numbers, added, strict=True):
            positions = np.arange(int(parts.sizes.sum()))
            got = table.at(np.full(len(positions), number), positions)
            assert got.tolist() == simulated(parts, block, key)
    finally:
        lanes._MIN_CHUNK, lanes._ROWS_PER_CHUNK = minimum, rows


def test_memory_in_use_is_bounded_by_block_size() -> None:
    sizes = np.full(100, 50)
    parts = Parts(sizes, sizes * 0, np.cumsum(sizes) - sizes, sizes, column_bits(sizes), hashes(1, np.arange(100)))
    table = CellTable()
    cell = table.add(parts, 500, 1)
    shards = table.at(np.full(5000, cell), np.arange(5000)) // 50
    uses = [(shards == shard).nonzero()[0] for shard in range(100)]
    open_at = sum(np.bincount(np.arange(u[0], u[-1] + 1), minlength=5000) for u in uses)
    # 500 / 50 lanes, and those that open or close within the chunk that a position is permuted in.
    assert open_at.mean() < 25
