"""Downloads, in one request or in ranges, and the moment at which the last bytes are about to come."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import AccessDeniedError, ChecksumError, TransferError
from headrace.storage import CacheCounts, CacheStats, Retry, download
from headrace.storage.stores.local import LocalStore
from headrace.storage.transfer.download import AlmostDone, Transfer, TransferPool
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.testing.stores import FaultyStore, put_bytes
from tests.support.stores.downloads import DATA
from tests.support.suite.example_counts import scaled


class Watching(FaultyStore):
    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.asked = []

    def get(self, key, out, *, offset=0, size=None, etag=None):
        self.asked.append((offset, size, etag))
        return super().get(key, out, offset=offset, size=size, etag=etag)


class TestOneRequest:
    def test_a_broken_transfer_continues_at_the_byte_reached(self, local, fetch):
        store = Watching(local, ['broken', 'busy', 'broken'])
        assert fetch(store) == DATA
        half = len(DATA) // 2
        assert store.asked == [(0, None, None), (half, None, 'v1'), (half, None, 'v1'), (half + half // 2, None, 'v1')]

    def test_progress_starts_the_count_anew(self, local, fetch):
        retry = Retry(attempts=2, first_delay=0)
        assert fetch(FaultyStore(local, ['broken'] * 10), retry) == DATA
        with pytest.raises(TransferError, match='2 failures in a row'):
            fetch(FaultyStore(local, ['broken', 'busy', 'busy']), retry)

    def test_without_versions_it_starts_over(self, local, fetch):
        store = Watching(local, ['broken'], etag=None)
        assert fetch(store) == DATA
        assert store.asked == [(0, None, None)] * 2

    @pytest.mark.parametrize('new', [b'new' * 20_000, b'short'])
    def test_an_object_that_changes_is_read_from_its_beginning(self, local, fetch, new):
        def replace(data, out):
            out.write(data[:1000])
            put_bytes(local, 'x', new)
            raise BrokenTransferError.at('reset', etag='old')

        class Versioned(FaultyStore):
            def get(self, key, out, *, offset=0, size=None, etag=None):
                if etag == 'old':
                    raise BrokenTransferError.at('changed', changed=True)
                return super().get(key, out, offset=offset, size=size, etag=etag)

        assert fetch(Versioned(local, [replace])) == new

    def test_more_than_expected_is_refused_before_it_is_written(self, local, fetch, tmp_path):
        with pytest.raises(ChecksumError, match='larger than the 1000 bytes'):
            fetch(local, size=1000)
        assert (tmp_path / 'out').stat().st_size <= 1000

    def test_less_than_expected_is_an_error(self, local, fetch):
        with pytest.raises(ChecksumError, match=rf'It has {len(DATA)} bytes, in .*, the index gives {len(DATA) + 1}'):
            fetch(local, size=len(DATA) + 1)

    def test_an_object_of_unknown_size_has_a_bound(self, local, fetch, tmp_path):
        assert fetch(local, most=len(DATA)) == DATA
        with pytest.raises(ChecksumError, match='/x has more than 20000 bytes'):
            fetch(local, most=20_000)
        assert (tmp_path / 'out').stat().st_size <= 20_000

    def test_requests_retries_and_bytes_are_counted(self, local, fetch):
        stats = CacheStats()
        fetch(FaultyStore(local, ['broken', 'busy'], etag=None), stats=stats)
        assert stats.counts == CacheCounts(requests=3, retries=2, bytes_downloaded=len(DATA) * 3 // 2)


@pytest.mark.usefixtures('ranges')
class TestRanges:
    def test_each_byte_is_asked_for_once(self, local, fetch):
        store = Watching(local, [])
        assert fetch(store, size=len(DATA)) == DATA
        assert sorted(store.asked) == [(at, 1000 if at < 25_000 else None, None) for at in range(0, len(DATA), 1000)]

    @pytest.mark.parametrize('size', [1000, 1999])
    def test_small_objects_are_one_request(self, local, fetch, size):
        put_bytes(local, 'x', DATA[:size])
        store = Watching(local, [])
        assert fetch(store, size=size) == DATA[:size]
        assert store.asked == [(0, None, None)]

    @settings(deadline=None, max_examples=scaled(50))
    @given(faults=st.lists(st.sampled_from([None, 'broken', 'busy']), max_size=40))
    def test_whatever_breaks_what_comes_is_right(self, tmp_path_factory, faults):
        folder = tmp_path_factory.mktemp('ranges')
        store = LocalStore(folder / 'store')
        put_bytes(store, 'x', DATA)
        with open(folder / 'out', 'w+b', buffering=0) as out, contextlib.suppress(TransferError):
            download(FaultyStore(store, faults), 'x', out, Retry(attempts=30, first_delay=0), size=len(DATA))
            assert (folder / 'out').read_bytes() == DATA
            return
        raise AssertionError('30 attempts for each range were not enough')

    def test_a_range_continues_at_the_byte_it_reached(self, local, fetch):
        store = Watching(local, ['broken'])
        assert fetch(store, size=len(DATA)) == DATA
        assert len(store.asked) == 27
        again = [asked for asked in store.asked if asked[2]]
        assert again == [(again[0][0], 500, 'v1')]
        assert again[0][0] % 1000 == 500

    def test_versions_are_not_mixed(self, local, fetch):
        new = bytes(reversed(DATA))

        def replace(data, out):
            out.write(data)
            put_bytes(local, 'x', new)

        class Versioned(FaultyStore):
            def get(self, key, out, *, offset=0, size=None, etag=None):
                super().get(key, out, offset=offset, size=size, etag=etag)
                return local.head('x').etag

        store = Versioned(local, [None] * 12 + [replace])
        assert fetch(store, size=len(DATA)) == new
        assert sum(store.calls.values()) == 2 * 26
        with pytest.raises(ChecksumError, match='replaced while it was being read: its versions are .*, .* It changes'):
            fetch(Versioned(local, ([None] * 12 + [replace] + [None] * 13) * 4), size=len(DATA))

    @pytest.mark.parametrize('size', [len(DATA) - 3000, len(DATA) - 1, len(DATA) + 1, len(DATA) + 3000])
    def test_another_size_than_expected_is_an_error(self, local, fetch, size):
        with pytest.raises(ChecksumError, match=r'larger than|It has'):
            fetch(local, size=size)

    def test_the_first_failure_is_told_and_the_rest_left_out(self, local, fetch):
        store = Watching(local, ['denied'] * 100)
        with pytest.raises(AccessDeniedError):
            fetch(store, size=len(DATA))
        assert len(store.asked) <= 16

    def test_who_is_late_writes_nothing(self, local, fetch, tmp_path):
        """A request that hangs while another fails may come back to a descriptor that is somebody else's by then."""
        go_on, wrote = threading.Event(), threading.Event()

        def late(data, out):
            go_on.wait(60)
            try:
                out.write(data)
            except Exception:
                wrote.set()
                raise

        with pytest.raises(AccessDeniedError):
            fetch(FaultyStore(local, [late, 'denied']), Retry(attempts=1), size=len(DATA))
        before = (tmp_path / 'out').read_bytes()
        go_on.set()
        assert wrote.wait(60)
        assert (tmp_path / 'out').read_bytes() == before


class TestPool:
    def test_calls_are_made_in_order_urgent_ones_first(self):
        pool, begun, order = TransferPool(1), threading.Event(), []
        gate = threading.Event()
        first = threading.Thread(target=lambda: pool.run([lambda: (begun.set(), gate.wait(60))]))
        first.start()
        assert begun.wait(60)
        threads = []
        for urgent, name in [(False, 'a'), (False, 'b'), (True, 'c'), (True, 'd')]:
            thread = threading.Thread(target=lambda u=urgent, n=name: pool.run([lambda: order.append(n)], urgent=u))
            thread.start()
            threads.append(thread)
            while sum(len(queue.waiting) for queue in pool._queues) + len(order) < len(threads):
                time.sleep(0.001)
        for thread in threads[2:]:  # they do not wait for the one that hangs
            thread.join(60)
        assert order == ['c', 'd']
        gate.set()
        for thread in [first, *threads]:
            thread.join(60)
        assert order == ['c', 'd', 'a', 'b']

    def test_what_somebody_waits_for_comes_in_order(self):
        pool, begun, order, gate = TransferPool(1), threading.Event(), [], threading.Event()
        first = threading.Thread(target=lambda: pool.run([lambda: (begun.set(), gate.wait(60))], urgent=True))
        first.start()
        assert begun.wait(60)
        for name in 'ab':
            rest = threading.Thread(target=lambda n=name: pool.run([lambda: order.append(n)], urgent=True))
            rest.start()
            while len(pool._queues[0].waiting) < 'ab'.index(name) + 1:
                time.sleep(0.001)
        gate.set()
        first.join(60)
        rest.join(60)
        assert order == ['a', 'b']

    def test_no_more_run_at_once_than_there_are_threads(self):
        pool, lock, now, most, begun = TransferPool(3), threading.Lock(), 0, 0, 0
        together = threading.Barrier(3)

        def call():
            nonlocal now, most, begun
            with lock:
                now += 1
                begun += 1
                most = max(most, now)
                first = begun <= 3
            if first:
                together.wait(60)
            time.sleep(0.01)
            with lock:
                now -= 1

        pool.run([call] * 20)
        assert most == 3

    def test_no_call_waits_while_a_thread_is_free(self):
        for _ in range(100):
            pool, together = TransferPool(4), threading.Barrier(4)
            with ThreadPoolExecutor(4) as callers:
                # One that waits for another breaks the barrier.
                list(callers.map(pool.run, [[lambda b=together: b.wait(60)]] * 4))

    def test_a_failure_is_raised_and_what_had_not_begun_is_left_out(self):
        pool, made = TransferPool(1), []

        def fail():
            raise KeyError('x')

        with pytest.raises(KeyError):
            pool.run([lambda: made.append(1), fail, lambda: made.append(3)])
        assert made == [1]
        pool.run([lambda: made.append(4)])
        assert made == [1, 4]

    @pytest.mark.parametrize('started', [0, 2])
    def test_it_continues_with_the_threads_that_there_are(self, monkeypatch, started):
        start, allowed = threading.Thread.start, [True] * started

        def limited(thread):
            if not allowed:
                raise RuntimeError("can't start new thread")
            allowed.pop()
            start(thread)

        pool, made = TransferPool(8), []
        monkeypatch.setattr(threading.Thread, 'start', limited)
        pool.run([lambda n=number: made.append(n) for number in range(20)])
        assert sorted(made) == list(range(20))
        monkeypatch.undo()
        together = threading.Barrier(8)
        pool.run([lambda: together.wait(60)] * 8)


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
