"""Permutations evaluated at a point, some of them frozen: a changed value is a changed order of every run."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.order.random.feistel import column_bits, feistel_permute


def permuted(n: int, key: int, x: np.ndarray | None = None) -> np.ndarray:
    x = np.arange(n) if x is None else x
    size = np.full(len(x), n)
    arrays = (a.astype(np.uint64) for a in (x, size, column_bits(size)))
    return feistel_permute(*arrays, np.full(len(x), key, np.uint64)).astype(np.int64)


def test_permutations() -> None:
    assert permuted(10, 0).tolist() == [5, 9, 8, 2, 0, 1, 7, 6, 3, 4]
    assert permuted(10, 2**64 - 1).tolist() == [0, 3, 2, 5, 7, 8, 4, 1, 9, 6]
    assert permuted(300, 5)[:10].tolist() == [46, 279, 99, 48, 96, 239, 172, 92, 115, 22]


@pytest.mark.parametrize('n', [*range(1, 70), 255, 256, 257, 1000, 4096, 4097, 100_003])
def test_permutation_is_one(n: int) -> None:
    assert (np.sort(permuted(n, n)) == np.arange(n)).all()


def test_domains_of_different_sizes_in_one_call() -> None:
    n = np.repeat([1, 5, 300, 70], [1, 5, 300, 70])
    x = np.concatenate([np.arange(m) for m in (1, 5, 300, 70)])
    keys = np.full(len(x), 9, np.uint64)
    together = feistel_permute(*(a.astype(np.uint64) for a in (x, n, column_bits(n))), keys)
    apart = np.concatenate([permuted(m, 9) for m in (1, 5, 300, 70)])
    assert (together.astype(np.int64) == apart).all()


def test_large_domain_has_no_collisions() -> None:
    n = 2**48 + 12345
    x = np.arange(2**20) + n // 3
    y = permuted(n, 3, x)
    assert 0 <= y.min() < y.max() < n
    assert len(np.unique(y)) == len(y)
    assert permuted(n, 3, x[:5]).tolist() == y[:5].tolist()
