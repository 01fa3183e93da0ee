"""The inverse of a cell; whole orders are in test_explain."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.native.cell_table import CellTable, Parts
from headrace.order.native.special.inverse import CellInverse
from tests.support.orders.native_orders import added_cells
from tests.support.orders.order_cases import relaxed


@relaxed
@given(added_cells, st.randoms())
def test_find_is_the_inverse_and_knows_what_is_not_there(added: list[tuple[Parts, int, int]], random: Random) -> None:
    for cell in added:
        table = CellTable()
        table.add(*cell)
        positions = np.arange(int(cell[0].sizes.sum()))
        random.shuffle(positions)
        samples = table.at(np.zeros_like(positions), positions)
        inverse = CellInverse(*cell)
        assert (inverse.find(samples) == positions).all()
        everything = np.arange(-2, int(cell[0].shard_sizes.sum()) + 3)
        assert set(everything[inverse.find(everything) >= 0]) == set(samples)
