from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import Mixture, RowSelection, SampleMap, SelectedBits, SelectedRanges, SelectedSplit, StreamSize
from headrace.order.random.feistel import column_bits, feistel_permute
from headrace.order.random.hashing import derive, hash_text, hashes
from headrace.order.sample_map import SPLIT_UNIT, count_bits, each_selected_row
from tests.support.orders.order_cases import relaxed

CASES = json.loads((Path(__file__).parents[1] / 'data/order/spanner.json').read_text())['cases']


@pytest.mark.parametrize('case', CASES, ids=lambda case: case['id'])
def test_samples_are_where_mosaicml_finds_them(case: dict) -> None:
    found = SampleMap(np.array(case['args']['shard_sizes']))
    for sample, shard, row in case['lookups']:
        assert found.locate_one(sample) == (shard, row)
    for outside in (-1, found.num_samples):
        with pytest.raises(IndexError):
            found.locate_one(outside)
        with pytest.raises(IndexError):
            found.locate(np.array([0, outside]))


@relaxed
@given(
    st.lists(st.integers(0, 5), min_size=1)
    | st.tuples(st.integers(1, 5), st.integers(1, 9)).map(lambda t: [t[0]] * t[1])
)
def test_every_sample_is_found(sizes: list[int]) -> None:
    found = SampleMap(np.array(sizes))
    shards, rows = found.locate(np.arange(sum(sizes)))
    expected = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == expected
    assert [found.locate_one(i) for i in range(sum(sizes))] == expected


SIZES = st.lists(st.integers(0, 70), min_size=1, max_size=8).filter(sum)
PARTS = st.sampled_from([0, 1, SPLIT_UNIT // 3, SPLIT_UNIT // 2, SPLIT_UNIT * 19 // 20, SPLIT_UNIT - 1, SPLIT_UNIT])


@st.composite
def sizes_and_ranges(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    sizes = draw(SIZES)
    total = sum(sizes)
    edges = sorted(draw(st.sets(st.integers(0, total), min_size=2 if total else 0, max_size=12)))
    return sizes, [list(pair) for pair in zip(edges[::2], edges[1::2], strict=False)]


@st.composite
def sizes_and_mask(draw: st.DrawFn) -> tuple[list[int], list[bool]]:
    sizes = draw(SIZES | st.just([64, 64, 0, 128, 1]))
    kinds = st.just([True]) | st.just([False]) | st.lists(st.booleans(), min_size=1, max_size=70)
    return sizes, list(itertools.islice(itertools.cycle(draw(kinds)), sum(sizes)))


def place(sizes: list[int]) -> list[tuple[int, int]]:
    return [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]


def listed(kept: RowSelection) -> list[tuple[int, int]]:
    """Every kept row, asked for one by one."""
    asked = [(shard, rank) for shard, count in enumerate(kept.counts.tolist()) for rank in range(count)]
    shards, ranks = (np.array([pair[i] for pair in asked], np.int64) for i in (0, 1))
    return list(zip(shards.tolist(), kept.rows(shards, ranks).tolist(), strict=True))


def bits(sizes: list[int], mask: list[bool], dtype: type = np.uint32) -> SelectedBits:
    words = np.zeros(sum(sizes) // 64 + 1, np.uint64)
    for i, is_set in enumerate(mask):
        words[i // 64] |= np.uint64(is_set) << np.uint64(i % 64)
    below = np.concatenate([[0], np.cumsum(count_bits(words))]).astype(dtype)
    return SelectedBits(np.array(sizes), words, below)


@relaxed
@given(sizes_and_ranges())
def test_ranges_keep_the_samples_that_they_name(case: tuple[list[int], list[list[int]]]) -> None:
    sizes, ranges = case
    kept = SelectedRanges(np.array(sizes), np.array(ranges).reshape(-1, 2))
    inside = [any(begin <= i < end for begin, end in ranges) for i in range(sum(sizes))]
    assert listed(kept) == [at for at, wanted in zip(place(sizes), inside, strict=True) if wanted]
    expected = [sum(inside[:i]) for i in range(sum(sizes) + 1)]
    assert kept.below(np.arange(sum(sizes) + 1)).tolist() == expected


@relaxed
@given(sizes_and_mask(), st.sampled_from([np.uint32, np.int64]))
def test_bits_keep_the_samples_whose_bit_is_set(case: tuple[list[int], list[bool]], dtype: type) -> None:
    sizes, mask = case
    kept = bits(sizes, mask, dtype)
    expected = [at for at, wanted in zip(place(sizes), mask, strict=True) if wanted]
    assert listed(kept) == expected
    assert kept.holds(np.arange(sum(sizes))).tolist() == mask


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_bits_are_counted(words: list[int]) -> None:
    assert count_bits(np.array(words, np.uint64)).tolist() == [word.bit_count() for word in words]


def model_of_a_split(sizes: list[int], low: int, high: int, seed: int) -> list[tuple[int, int]]:
    """In Python's integers, a row at a time."""
    key = derive(hash_text('split'), seed)
    found = []
    for shard, size in enumerate(sizes):
        one = np.array([shard])
        u = int(hashes(derive(key, 1), one)[0]) >> 32
        for at in range((low * size + u) // SPLIT_UNIT, (high * size + u) // SPLIT_UNIT):
            n = np.array([size])
            row = feistel_permute(np.array([at], np.uint64), n.astype(np.uint64), column_bits(n).astype(np.uint64),
                          hashes(key, one))  # fmt: skip
            found.append((shard, int(row[0])))
    return found


@relaxed
@given(SIZES, PARTS, PARTS, st.integers(0, 2**70))
def test_a_split_is_what_its_module_says(sizes: list[int], one: int, other: int, seed: int) -> None:
    low, high = min(one, other), max(one, other)
    kept = SelectedSplit(np.array(sizes), low, high, seed=seed)
    assert listed(kept) == model_of_a_split(sizes, low, high, seed)


@relaxed
@given(SIZES, st.lists(PARTS, max_size=4), st.integers(0, 9))
def test_splits_that_touch_share_nothing_and_leave_nothing_out(sizes: list[int], cuts: list[int], seed: int) -> None:
    edges = [0, *sorted(cuts), SPLIT_UNIT]
    parts = [listed(SelectedSplit(np.array(sizes), *pair, seed=seed)) for pair in itertools.pairwise(edges)]
    assert sorted(itertools.chain(*parts)) == place(sizes)


@relaxed
@given(sizes_and_ranges(), PARTS, PARTS, st.integers(0, 9))
def test_ranges_leave_a_row_on_its_side_of_a_split(
    case: tuple[list[int], list[list[int]]], one: int, other: int, seed: int
) -> None:
    sizes, ranges = case
    low, high = min(one, other), max(one, other)
    within = SelectedRanges(np.array(sizes), np.array(ranges).reshape(-1, 2))
    kept = SelectedSplit(np.array(sizes), low, high, seed=seed, within=within)
    inside = set(listed(within))
    assert listed(kept) == [at for at in model_of_a_split(sizes, low, high, seed) if at in inside]


def test_a_split_keeps_its_share_of_shards_of_any_size() -> None:
    for size in (1, 3, 1000):
        shards = 60_000 // size
        kept = SelectedSplit(np.full(shards, size), 0, SPLIT_UNIT // 10, seed=1)
        assert kept.counts.sum() / (shards * size) == pytest.approx(0.1, abs=0.005)
        assert set(kept.counts.tolist()) <= {size // 10, -(-size // 10)}


def test_a_split_survives_appended_shards_and_differs_by_shard_and_seed() -> None:
    sizes = np.array([50, 50, 70])
    before = listed(SelectedSplit(sizes, 0, SPLIT_UNIT // 2, seed=3))
    after = listed(SelectedSplit(np.array([50, 50, 70, 10]), 0, SPLIT_UNIT // 2, seed=3))
    assert after[: len(before)] == before
    rows = [{row for shard, row in before if shard == number} for number in (0, 1)]
    assert rows[0] != rows[1]
    assert set(before) != set(listed(SelectedSplit(sizes, 0, SPLIT_UNIT // 2, seed=4)))


def test_a_split_is_pinned() -> None:
    """A split that changed would leak validation data into training."""
    kept = SelectedSplit(np.array([12, 300]), SPLIT_UNIT * 3 // 4, SPLIT_UNIT, seed=0)
    assert [row for shard, row in listed(kept) if shard == 0] == [11, 6, 1]
    assert [row for shard, row in listed(kept) if shard == 1][:6] == [293, 103, 48, 85, 269, 181]


@relaxed
@given(sizes_and_mask())
def test_each_kept_row_comes_once_and_in_order(case: tuple[list[int], list[bool]]) -> None:
    kept = bits(*case)
    shards = np.arange(len(case[0]))[::-1]
    found = [pair for a, b in each_selected_row(kept, shards) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    assert found == sorted(listed(kept), key=lambda at: (-at[0], at[1]))


@relaxed
@given(st.lists(st.tuples(sizes_and_mask(), st.booleans()), min_size=1, max_size=4))
def test_a_sample_map_finds_the_kept_rows_of_several_streams(
    streams: list[tuple[tuple[list[int], list[bool]], bool]],
) -> None:
    sizes, kept, expected, first = [], [], [], 0
    for number, ((shards, mask), is_whole) in enumerate(streams):
        all_kept = is_whole or not any(mask)
        kept.append(None if all_kept else bits(shards, mask))
        counts = shards if all_kept else kept[-1].counts
        sizes.append(StreamSize(name=str(number), shard_sizes=np.array(counts)))
        rows = place(shards) if all_kept else listed(kept[-1])
        expected += [(first + shard, row) for shard, row in rows]
        first += len(shards)
    found = SampleMap.of(Mixture.resolve(sizes), kept)
    shards, rows = found.locate(np.arange(found.num_samples))
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == expected
    assert [found.locate_one(i) for i in range(found.num_samples)] == expected
    for outside in (-1, found.num_samples):
        with pytest.raises(IndexError):
            found.locate_one(outside)
