"""Blocks of memory that are used again."""

from __future__ import annotations

import numpy as np

from headrace.format.block_pool import BLOCK, BlockPool


def test_a_block_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    pool = BlockPool()
    one, other = pool.take(), pool.take()
    assert len(one) == len(other) == BLOCK
    address = np.frombuffer(one, np.uint8).ctypes.data
    part = one[1000:2000][5:]
    part[:] = b'7' * 995
    del one
    assert np.frombuffer(pool.take(), np.uint8).ctypes.data != address
    assert bytes(part) == b'7' * 995
    del part
    assert np.frombuffer(pool.take(), np.uint8).ctypes.data == address
