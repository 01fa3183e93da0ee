from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.native.interleave import RandomInterleave, quotas
from tests.support.orders.order_cases import mixture, relaxed, shuffled, whole


@relaxed
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 9))
def test_quotas_deal_the_line_of_draws_to_the_nodes(choose: list[int], nodes: int) -> None:
    expected = np.zeros((len(choose), nodes), int)
    streams = np.repeat(np.arange(len(choose)), choose)
    for draw, stream in enumerate(streams):
        expected[stream, draw % nodes] += 1
    assert (quotas(np.array(choose), nodes) == expected).all()


def check_every_draw_once(node_quotas: np.ndarray, interleave: RandomInterleave, node: int, order: np.ndarray) -> None:
    slots = np.arange(node_quotas[:, node].sum())[order]
    streams, draws = np.empty_like(slots), np.empty_like(slots)
    streams[order], draws[order] = interleave.at(np.full(len(slots), node), slots)
    for stream, quota in enumerate(node_quotas[:, node]):
        # In ascending order, each once.
        assert (draws[streams == stream] == np.arange(quota)).all()


@relaxed
@given(st.lists(st.integers(0, 400), min_size=2, max_size=6), st.integers(1, 5), st.integers(0, 3), st.integers(1, 64))
def test_every_draw_has_one_slot_in_many_windows(choose: list[int], nodes: int, key: int, window: int) -> None:
    node_quotas = quotas(np.array([sum(choose) + 1, *choose]), nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('headrace.order.native.interleave.SLOTS_IN_WINDOWS', 0)
        patch.setattr('headrace.order.native.interleave.MIN_WINDOW', window)
        interleave = RandomInterleave(node_quotas, key)
    rng = np.random.default_rng(key)
    for node in range(nodes):
        size = int(node_quotas[:, node].sum())
        check_every_draw_once(node_quotas, interleave, node, rng.permutation(size))
        check_every_draw_once(node_quotas, interleave, node, np.arange(size))


def test_shares_hold_in_every_part_of_an_epoch() -> None:
    choose = np.array([700_000, 200_000, 99_000, 1000])
    node_quotas = quotas(choose, 4)
    interleave = RandomInterleave(node_quotas, 1)
    slots = np.arange(1_000_000)
    streams, _ = interleave.at(slots % 4, slots // 4)
    counts = np.stack([np.bincount(part, minlength=4) for part in streams.reshape(-1, 1000)])
    assert (counts.sum(0) == choose).all()
    # Batches of 1000 vary as independent draws do, at least nearly: a window of 32,768 slots holds 250 of them.
    share = choose / 1e6
    assert counts.var(0) == pytest.approx(1000 * share * (1 - share), rel=0.15)
    # And parts of an eighth have their share to within what one window a node leaves open.
    eighths = counts.reshape(8, -1, 4).sum(1)
    assert np.abs(eighths - choose / 8).max() < 4 * 3 * np.sqrt(32768 * 0.25)


def _chi_square(observed: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Chi-square and degrees of freedom, of cells that are expected 8 times at least; the others count as one."""
    large = expected >= 8
    observed = np.append(observed[large], observed[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    there = expected > 0
    return float(((observed - expected)[there] ** 2 / expected[there]).sum()), int(there.sum()) - 1


@pytest.mark.parametrize('nodes', [1, pytest.param(4, marks=pytest.mark.slow), 8])
def test_random_batches_vary_as_random_draws_do(nodes: int) -> None:
    """How many samples of a stream a batch has, and which stream follows which, by chi-square; 7 seeds together."""
    shares, batch, batches = (0.5, 0.3, 0.15, 0.05), 64, 2000
    mix = mixture(*[[100] * 40] * 4, choose=[int(share * batch * batches) for share in shares])
    counts, pairs = np.zeros((4, batch + 1)), np.zeros((4, 4))
    for seed in range(7):
        ids = whole(shuffled(mix, nodes=nodes, seed=seed))
        streams = np.searchsorted(mix.sample_offsets, ids, 'right') - 1
        for stream in range(4):
            counts[stream] += np.bincount((streams.reshape(-1, batch) == stream).sum(1), minlength=batch + 1)
        np.add.at(pairs, (streams[:-1], streams[1:]), 1)
    for share, observed in zip(shares, counts, strict=True):
        binomial = [math.comb(batch, k) * share**k * (1 - share) ** (batch - k) for k in range(batch + 1)]
        chi, freedom = _chi_square(observed, np.array(binomial) * 7 * batches)
        assert chi < freedom + 4 * math.sqrt(2 * freedom), (share, chi, freedom)
    chi, freedom = _chi_square(pairs.reshape(-1), np.outer(shares, shares).reshape(-1) * pairs.sum())
    assert chi < freedom + 4 * math.sqrt(2 * freedom), (chi, freedom)
