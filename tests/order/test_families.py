"""What differs between the families of orders."""

from __future__ import annotations

import pytest

from headrace.errors import UnknownNameError
from headrace.order import OrderConfig
from headrace.order.families import ALGORITHMS, PERMUTATIONS, family_of


def test_no_name_is_the_native_order() -> None:
    assert family_of(None) is family_of('native')
    assert family_of('native').permutation is None
    assert ('native', *PERMUTATIONS) == ALGORITHMS


def test_a_name_without_an_order_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"must be one of \['naive', 'native', .*got 'no-such'"):
        family_of('no-such')


@pytest.mark.parametrize('algorithm', PERMUTATIONS)
def test_mosaicmls_orders_begin_with_canonical_nodes_for_each_node(algorithm: str) -> None:
    per_node = 64 if algorithm in ('py1s', 'py2s') else 1
    assert OrderConfig(algorithm=algorithm).canonical_nodes(10, num_nodes=3) == 3 * per_node


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_only_orders_whose_repeats_have_no_position_can_mark_them(algorithm: str) -> None:
    family = family_of(algorithm)
    assert family.remainder == ('repeat' if family.counts_repeats else 'exact')
    assert family.counts_repeats == (algorithm != 'native')
