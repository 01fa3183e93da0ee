"""The moment at which the last bytes of an object are about to come."""

from __future__ import annotations

import pytest

from headrace.storage.transfer.download import AlmostDone, Transfer
from headrace.testing.stores import FaultyStore
from tests.support.stores.downloads import DATA


class TestNearlyThere:
    @pytest.fixture
    def near(self):
        """(made, calls, clock): what counts bytes, when it called, and what time it is."""
        clock, calls = [0.0], []
        return AlmostDone(1000, lambda: calls.append(clock[0]), lambda: clock[0]), calls, clock

    def test_it_calls_when_what_is_left_takes_no_longer_than_an_answer(self, near):
        one, calls, clock = near
        one.ask()
        clock[0] = 2.0  # the latency
        for _ in range(10):  # 100 bytes a second
            one.count(100)
            clock[0] += 1.0
        assert calls == [9.0]  # two seconds before the last bytes

    def test_what_waited_in_a_buffer_is_no_pace(self, near):
        one, calls, clock = near
        one.ask()
        clock[0] = 2.0
        for _ in range(5):  # at once
            one.count(100)
        assert calls == []
        for _ in range(5):
            clock[0] += 1.0
            one.count(100)
        assert calls == [4.0]  # 600 bytes in two seconds, and 300 are left

    def test_latency_counts_from_the_first_request(self, near):
        one, calls, clock = near
        one.ask()
        clock[0] = 1.0
        one.ask()
        one.count(100)
        clock[0] = 5.0
        one.count(700)
        one.count(200)
        assert calls == [5.0]

    def test_what_comes_at_once_is_there(self, near):
        one, calls, _ = near
        one.ask()
        one.count(1000)
        one.count(1000)
        assert calls == [0.0]

    def test_a_download_calls_once_whatever_its_ranges(self, fetch, local, ranges):
        calls = []
        assert fetch(local, size=len(DATA), how=Transfer(almost_done=lambda: calls.append(1))) == DATA
        assert calls == [1]

    def test_of_an_unknown_size_nothing_is_near(self, fetch, local):
        assert fetch(local, how=Transfer(almost_done=pytest.fail)) == DATA

    def test_what_came_in_vain_makes_it_call_early_and_once(self, fetch, local):
        calls = []
        store = FaultyStore(local, ['broken', 'broken'], etag=None)
        assert fetch(store, size=len(DATA), how=Transfer(almost_done=lambda: calls.append(1))) == DATA
        assert calls == [1]
