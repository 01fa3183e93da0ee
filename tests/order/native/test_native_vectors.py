"""The native order never changes: what it gave when it was frozen, it gives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from headrace.order import Order
from tests.support.orders.native_vectors import FILE, KINDS, cases, few_streams, many_streams, recorded

Case = tuple[str, Order, np.ndarray]
FROZEN = json.loads(FILE.read_text())


def first() -> Iterator[Case]:
    """For `make check`."""
    return itertools.islice(few_streams(), 12)


def each_sixth_of_many_streams() -> Iterator[Case]:
    """Which take longest."""
    return itertools.islice(many_streams(), 0, None, 6)


@pytest.mark.parametrize(
    'some',
    [
        first,
        each_sixth_of_many_streams,
        *(pytest.param(kind, marks=pytest.mark.slow) if kind is many_streams else kind for kind in KINDS),
    ],
)
def test_the_order_is_what_it_was_when_it_was_frozen(some: Callable[[], Iterator[Case]]) -> None:
    now = {name: recorded(*case) for name, *case in some()}
    differing = [name for name, found in now.items() if found != FROZEN[name]]
    assert not differing, f'{len(differing)} of {len(now)} orders changed, first: {differing[0]}'


def test_no_case_was_dropped() -> None:
    assert [name for name, *_ in cases()] == list(FROZEN)
