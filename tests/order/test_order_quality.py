"""How random the native order is. Seeds are fixed: the figures are the same on every machine."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest

from headrace.order.random.feistel import column_bits, feistel_permute, feistel_unpermute
from headrace.order.random.hashing import hashes, keyed_order
from headrace.testing.order_quality import bits, node_use, sequence_of
from tests.support.orders.order_cases import mixture, shuffled, whole


def chi_square(counts: np.ndarray, freedom: int | None = None) -> float:
    """Per degree of freedom; 1 is what uniform draws give."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum() / (freedom or counts.size - 1))


def many_permutations(n: int, count: int) -> np.ndarray:
    x = np.tile(np.arange(n), count)
    size = np.full(len(x), n)
    keys = np.repeat(hashes(5, np.arange(count)), n)
    arrays = (a.astype(np.uint64) for a in (x, size, column_bits(size)))
    return feistel_permute(*arrays, keys).astype(np.int64).reshape(count, n)


@pytest.mark.parametrize('n', [3, 4, 5, 6])
@pytest.mark.parametrize('way', ['network', pytest.param('sorted', marks=pytest.mark.slow)])
def test_all_permutations_are_equally_likely(n: int, way: str) -> None:
    count = 60_000
    rows = many_permutations(n, count) if way == 'network' else np.stack([keyed_order(k, n) for k in range(count)])
    codes = rows @ n ** np.arange(n)
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == factorial(n)
    assert chi_square(counts) < 1 + 4 * np.sqrt(2 / factorial(n))


@pytest.mark.parametrize('n', [16, 32, 65, 300])
def test_numbers_and_neighbours_go_anywhere(n: int) -> None:
    rows = many_permutations(n, 6000)
    cells = np.bincount((rows + n * np.arange(n)).ravel(), minlength=n * n)
    assert chi_square(cells, (n - 1) ** 2) == pytest.approx(1, abs=4 * np.sqrt(2) / (n - 1))
    pairs = np.bincount((n * rows[:, :-1] + rows[:, 1:]).ravel(), minlength=n * n).reshape(n, n)
    assert chi_square(pairs[~np.eye(n, dtype=bool)]) == pytest.approx(1, abs=4 * np.sqrt(2) / (n - 1))
    for step in (1, 2, 1 << int(column_bits(np.array([n]))[0])):
        differences = np.bincount(((np.roll(rows, -step, 1) - rows) % n).ravel(), minlength=n)[1:]
        assert chi_square(differences) < 1 + 4 * np.sqrt(2 / n)


def test_unpermute_is_the_inverse() -> None:
    n = np.concatenate([np.arange(1, 300), np.full(500, 1000), np.full(500, 10**9), np.full(500, 2**40 + 1)])
    n = np.repeat(n, 20)
    x = hashes(1, np.arange(len(n))) % n.astype(np.uint64)
    sizes, bits, keys = n.astype(np.uint64), column_bits(n).astype(np.uint64), hashes(2, np.arange(len(n)))
    assert (feistel_unpermute(feistel_permute(x, sizes, bits, keys), sizes, bits, keys) == x).all()


@pytest.mark.parametrize(
    ('sizes', 'block', 'bound'),
    [
        ([10] * 24, 60, 1.03),
        pytest.param([10] * 24, 200, 1.03, marks=pytest.mark.slow),
        pytest.param([3, 17] * 12, 60, 1.05, marks=pytest.mark.slow),
        ([3, 17] * 12, 30, 1.05),
    ],
    ids=['equal', 'equal-long-block', 'uneven', 'uneven-short-block'],
)
def test_each_sample_may_stand_anywhere(sizes: list[int], block: int, bound: float) -> None:
    """Shards of unequal size are a little less uniform, as they are in py1e (1.03 here); tracks give 1.01 to 1.02."""
    n, seeds = sum(sizes), 600
    cells = np.zeros((n, n))
    for seed in range(seeds):
        cells[np.arange(n), whole(shuffled(mixture(sizes), seed=seed, block=block))] += 1
    assert chi_square(cells, (n - 1) ** 2) < bound


_RANDOM = np.random.default_rng(7)
SHARDS = {
    'equal': np.full(200, 500),
    'uneven': _RANDOM.integers(100, 1901, 100),
    'lognormal': np.maximum(1, np.exp(_RANDOM.normal(6, 1, 120))).astype(np.int64),
    'small': _RANDOM.integers(20, 80, 2000),
}


def measured(algorithm: str, sizes: np.ndarray, nodes: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over seeds, and over canonical nodes: bits of all samples and shards, of a node's; and a node's use."""
    gains, uses = [], []
    for seed in range(5):
        sequence = sequence_of(algorithm, sizes, nodes, block, seed)
        each = [sequence.node(c) for c in range(nodes)]
        of_nodes = np.mean([(bits(node.samples), bits(node.shards)) for node in each], 0)
        gains.append([bits(sequence.samples), bits(sequence.shards), *of_nodes])
        for node in each:
            use = node_use(node.shards, 128)
            uses.append([use.open.mean(), use.open.max(), use.new[1:-1].std(), use.new[0]])
    return np.mean(gains, 0), np.mean(uses, 0)


BLOCKS = (1200, pytest.param(6000, marks=pytest.mark.slow), 20_000)


@pytest.mark.parametrize('nodes', [1, 4])
@pytest.mark.parametrize('block', BLOCKS)
@pytest.mark.parametrize('shards', SHARDS)
def test_shuffle_and_downloads_are_py1es_or_better(shards: str, block: int, nodes: int) -> None:
    ours, use = measured('native', SHARDS[shards], nodes, block)
    py1es, py1es_use = measured('py1e', SHARDS[shards], nodes, block)
    # Of several nodes, neighbours are of different nodes: there the orders differ less than seeds do.
    assert (ours - py1es)[:2].min() > (-0.005 if nodes > 1 else 0)
    assert (ours - py1es)[2:].min() > 0
    open_mean, open_max, new_deviation, first = use
    assert open_mean < 1.15 * py1es_use[0] + 1
    assert open_max < 1.07 * py1es_use[1] + 1
    # Tracks of unequal shards open independently of each other, as a Poisson process does.
    assert new_deviation < 1.3 * py1es_use[2] + 0.05
    # A row has a sample of each track; as many draws with replacement would miss some.
    assert first < 1.3 * py1es_use[3] + 2


def test_downloads_of_equal_shards_are_even() -> None:
    use = node_use(sequence_of('native', np.full(1000, 500), 1, 1 << 15, 0).shards, 500)
    assert use.open.max() == 66
    assert use.new[1:-66].max() == 1
    assert use.new[0] <= 35


def test_shards_come_in_another_order_in_each_pass() -> None:
    mix = mixture([50] * 64)
    openings = []
    for epoch in range(3):
        shards = whole(shuffled(mix, epoch, block=50)) // 50
        openings.append(list(dict.fromkeys(shards.tolist())))
    assert openings[0] != openings[1] != openings[2] != openings[0]
