from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_cases import relaxed

from headrace.order.interleave import RandomInterleave, quotas


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
        patch.setattr('headrace.order.interleave._SLOTS_IN_WINDOWS', 0)
        patch.setattr('headrace.order.interleave._MIN_WINDOW', window)
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
