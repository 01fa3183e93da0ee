"""A long window is what sorting the hashes of all its slots gives."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.order.native.long_window import LongWindow
from headrace.order.random.hashing import keyed_order


@pytest.mark.parametrize(
    'counts',
    [
        np.arange(1, 701),  # 245,350 slots
        np.array([0, 0, 150_000, 1, 0, 49_999, 7, 0, 0]),
        np.array([0, 30_000, 0]),
        np.r_[400_000, np.ones(300, int)],
    ],
    ids=['of 700 streams', 'with streams that have none', 'of one stream', 'with a large stream'],
)
def test_a_long_window_is_what_sorting_it_gives(counts: np.ndarray) -> None:
    size, key = int(counts.sum()), 2**63 + 5
    streams = np.empty(size, int)
    streams[keyed_order(key, size)] = np.repeat(np.arange(len(counts)), counts)
    parts = [(begin, min(begin + 5000, size)) for begin in range(0, size, 5000)]
    rng = np.random.default_rng(0)
    forwards, scattered = parts[:20], [parts[i] for i in rng.permutation(len(parts))[:20]]
    for near, order in ((0, forwards), (size // 2, scattered)):
        window = LongWindow(key, counts, near)
        for begin, end in order:
            before, found = window.part(begin, end)
            assert (found == streams[begin:end]).all()
            assert (before == np.bincount(streams[:begin], minlength=len(counts))).all()
        for slot in [0, size - 1, *rng.integers(0, size, 20).tolist()]:
            stream = int(streams[slot])
            assert window.slot_of(stream, int((streams[:slot] == stream).sum())) == slot
