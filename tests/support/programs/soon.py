"""A bound on the time of each test, for errors that must come soon."""

from __future__ import annotations

import time

import pytest

SOON = 60  # seconds; on an idle machine each of these takes a fraction of one


@pytest.fixture(autouse=True)
def soon():
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < SOON
