"""How random the native order is. Seeds are fixed: the figures are the same on every machine."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from order_cases import mixture, shuffled, whole

from headrace.order.hashing import hashes, keyed_order
from headrace.order.permute import column_bits, permute


def chi_square(counts: np.ndarray, freedom: int | None = None) -> float:
    """Per degree of freedom; 1 is what uniform draws give."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum() / (freedom or counts.size - 1))


def many_permutations(n: int, count: int) -> np.ndarray:
    x = np.tile(np.arange(n), count)
    size = np.full(len(x), n)
    keys = np.repeat(hashes(5, np.arange(count)), n)
    arrays = (a.astype(np.uint64) for a in (x, size, column_bits(size)))
    return permute(*arrays, keys).astype(np.int64).reshape(count, n)


@pytest.mark.parametrize('n', [3, 4, 5, 6])
@pytest.mark.parametrize('way', ['network', 'sorted'])
def test_all_permutations_are_equally_likely(n: int, way: str) -> None:
    count = 60_000
    rows = many_permutations(n, count) if way == 'network' else np.stack([keyed_order(k, n) for k in range(count)])
    codes = rows @ n ** np.arange(n)
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == factorial(n)
    assert chi_square(counts) < 1 + 4 * np.sqrt(2 / factorial(n))


@pytest.mark.parametrize('n', [16, 65, 300])
def test_numbers_and_neighbours_go_anywhere(n: int) -> None:
    rows = many_permutations(n, 6000)
    cells = np.bincount((rows + n * np.arange(n)).ravel(), minlength=n * n)
    assert chi_square(cells, (n - 1) ** 2) == pytest.approx(1, abs=4 * np.sqrt(2) / (n - 1))
    for step in (1, 2, 1 << int(column_bits(np.array([n]))[0])):
        differences = np.bincount(((np.roll(rows, -step, 1) - rows) % n).ravel(), minlength=n)[1:]
        assert chi_square(differences) < 1 + 4 * np.sqrt(2 / n)


@pytest.mark.parametrize(('sizes', 'bound'), [([10] * 24, 1.03), ([3, 17] * 12, 1.10)], ids=['equal', 'uneven'])
def test_each_sample_may_stand_anywhere(sizes: list[int], bound: float) -> None:
    """Shards of unequal size are a little less uniform, as they are in py1e (1.07 here)."""
    n, seeds = sum(sizes), 600
    cells = np.zeros((n, n))
    for seed in range(seeds):
        cells[np.arange(n), whole(shuffled(mixture(sizes), seed=seed, block=60))] += 1
    assert chi_square(cells, (n - 1) ** 2) < bound


def entropy(values: np.ndarray) -> float:
    share = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(share * np.log2(share)).sum())


def test_neighbours_are_nearly_as_far_apart_as_in_a_full_shuffle() -> None:
    shards = whole(shuffled(mixture([500] * 200), block=1 << 15)) // 500
    naive = np.random.default_rng(0).permutation(100_000) // 500
    got, full = (entropy(np.abs(np.diff(x))) for x in (shards, naive))
    assert got > full - 0.1


def test_shards_in_use_and_downloads_stay_even() -> None:
    shards = whole(shuffled(mixture([500] * 1000), block=1 << 15)) // 500
    first = np.full(1000, len(shards))
    last = np.zeros(1000, int)
    np.minimum.at(first, shards, np.arange(len(shards)))
    np.maximum.at(last, shards, np.arange(len(shards)))
    in_use = np.zeros(len(shards) + 1, int)
    np.add.at(in_use, first, 1)
    np.add.at(in_use, last + 1, -1)
    assert in_use.cumsum().max() <= 1.3 * (1 << 15) / 500
    new = np.bincount(first // 4096)
    # 8.2 shards' worth of samples every 4096 positions; the first ones open a part of the lanes at once.
    assert new[1:-1].max() <= 16
    assert new[0] <= 40


def test_shards_come_in_another_order_in_each_pass() -> None:
    mix = mixture([50] * 64)
    openings = []
    for epoch in range(3):
        shards = whole(shuffled(mix, epoch, block=50)) // 50
        openings.append(list(dict.fromkeys(shards.tolist())))
    assert openings[0] != openings[1] != openings[2] != openings[0]
