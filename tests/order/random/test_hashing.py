"""Hashes of the native order, frozen: a changed value here is a changed order of every run."""

from __future__ import annotations

import numpy as np

from headrace.order.random.hashing import derive, hash_text, hashes, keyed_order


def test_derived_keys() -> None:
    keys = [derive(0, 0), derive(0, 1), derive(1, 2, 3), derive(5, 2**64), derive(5, 0, 1)]
    assert keys == [
        0xA706DD2F4D197E6F,
        0x6D5EBC50CE868089,
        0x4243066DDDD43A90,
        0xEF9094A0E399CDFA,
        0xFB6D7D898DAFC5F0,
    ]


def test_hashed_text_is_blake2b() -> None:
    assert [hash_text(''), hash_text('stream_0')] == [0xB4B2797457A0A6E4, 0x3ABAD92106ED7E0F]


def test_hashes_are_the_stream_of_splitmix64() -> None:
    # The published outputs of splitmix64 from state 0.
    assert hashes(0, np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert hashes(1234567, np.array([0, 1, 2**40])).tolist() == [
        0x599ED017FB08FC85,
        0x2C73F08458540FA5,
        0xBB1F0647BE5882DE,
    ]


def test_keyed_orders() -> None:
    assert keyed_order(0, 10).tolist() == [2, 4, 6, 8, 5, 1, 7, 0, 9, 3]
    assert keyed_order(7, 10).tolist() == [1, 8, 5, 7, 0, 9, 4, 6, 3, 2]
    assert keyed_order(7, 0).tolist() == []
    assert keyed_order(7, 1).tolist() == [0]
