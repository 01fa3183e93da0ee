import io

import pytest

from headrace.errors import ChecksumError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage import Retry, download
from headrace.storage.local import LocalStore
from headrace.storage.retry import BrokenTransferError
from headrace.testing.stores import CountingStore, FaultyStore, put_bytes


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def retry(self, **how):
        return Retry(**how, sleep=self.sleep, clock=lambda: self.now)


def failing(times, error=None):
    left = [error or TransferError('no luck')] * times

    def attempt():
        if left:
            raise left.pop()
        return 'done'

    return attempt


def test_it_tries_until_it_works():
    time = Time()
    assert time.retry(attempts=4).call('X', failing(3)) == 'done'
    assert len(time.slept) == 3


def test_delays_grow_and_are_bounded():
    time = Time()
    with pytest.raises(TransferError):
        time.retry(attempts=30, first_delay=1, max_delay=8, timeout=1e9).call('X', failing(100))
    assert len(time.slept) == 29
    assert all(0 <= delay <= min(8, 2**n) for n, delay in enumerate(time.slept))
    assert max(time.slept) > 4


def test_the_last_error_names_attempts_and_cause():
    with pytest.raises(TransferError, match=r'Reading x failed after 2 attempts in .* no luck') as caught:
        Time().retry(attempts=2).call('Reading x', failing(9))
    assert str(caught.value.__cause__) == 'no luck'
    assert type(caught.value) is TransferError


def test_a_server_may_ask_for_a_pause():
    time = Time()
    time.retry(max_delay=5).call('X', failing(1, BrokenTransferError.at('503', retry_after=3)))
    time.retry(max_delay=5).call('X', failing(1, BrokenTransferError.at('503', retry_after=3600)))
    assert time.slept == [3, 5]


def test_the_whole_is_bounded_in_time():
    time = Time()
    with pytest.raises(TransferError, match='the bound is 10 s'):
        time.retry(attempts=10**6, first_delay=1, max_delay=2, timeout=10).call('X', failing(10**6))
    assert time.now <= 10


@pytest.mark.parametrize('error', [ObjectNotFoundError('x'), ChecksumError('x'), ConfigError('x'), KeyError('x')])
def test_only_transfers_are_tried_again(error):
    time = Time()
    with pytest.raises(type(error)):
        time.retry().call('X', failing(1, error))
    assert time.slept == []


@pytest.mark.parametrize('how', [{'attempts': 0}, {'first_delay': -1}, {'max_delay': -1}, {'timeout': -1}])
def test_impossible_settings_are_refused(how):
    with pytest.raises(ConfigError):
        Retry(**how)


def test_the_global_generator_is_left_alone():
    import random

    random.seed(5)
    expected = random.random()
    random.seed(5)
    Time().retry().call('X', failing(2))
    assert random.random() == expected


class TestDownload:
    DATA = bytes(range(256)) * 100

    @pytest.fixture
    def local(self, tmp_path):
        store = LocalStore(tmp_path)
        put_bytes(store, 'x', self.DATA)
        return store

    def test_a_broken_transfer_goes_on_at_the_byte_reached(self, local):
        offsets = []

        class Watching(FaultyStore):
            def get(self, key, out, *, offset=0, size=None, etag=None):
                offsets.append((offset, etag))
                super().get(key, out, offset=offset, size=size, etag=etag)

        out = io.BytesIO()
        store = Watching(local, ['broken', 'busy', 'broken'])
        assert download(store, 'x', out, Time().retry()) == len(self.DATA)
        assert out.getvalue() == self.DATA
        half = len(self.DATA) // 2
        assert offsets == [(0, None), (half, 'v1'), (half, 'v1'), (half + half // 2, 'v1')]

    def test_progress_starts_the_count_anew(self, local):
        out = io.BytesIO()
        assert download(FaultyStore(local, ['broken'] * 10), 'x', out, Time().retry(attempts=2)) == len(self.DATA)
        assert out.getvalue() == self.DATA
        with pytest.raises(TransferError, match='2 failures in a row'):
            download(FaultyStore(local, ['broken', 'busy', 'busy']), 'x', io.BytesIO(), Time().retry(attempts=2))

    def test_without_versions_it_starts_over(self, local):
        out = io.BytesIO(b'abc')
        out.seek(3)
        store = FaultyStore(local, ['broken'], etag=None)
        assert download(store, 'x', out, Time().retry()) == len(self.DATA)
        assert out.getvalue() == b'abc' + self.DATA

    def test_an_object_that_changes_is_read_from_its_beginning(self, local):
        new = b'new' * 20_000

        def replace(data, out):
            out.write(data[:1000])
            put_bytes(local, 'x', new)
            raise BrokenTransferError.at('reset', etag='old')

        class Versioned(FaultyStore):
            def get(self, key, out, *, offset=0, size=None, etag=None):
                if etag == 'old':
                    raise BrokenTransferError.at('changed', changed=True)
                super().get(key, out, offset=offset, size=size, etag=etag)

        out = io.BytesIO()
        download(Versioned(local, [replace]), 'x', out, Time().retry())
        assert out.getvalue() == new

    def test_more_than_expected_is_refused_before_it_is_written(self, local):
        out = io.BytesIO()
        with pytest.raises(ChecksumError, match='larger than the 1000 bytes'):
            download(local, 'x', out, Retry(), max_bytes=1000)
        assert len(out.getvalue()) <= 1000

    def test_an_unbuffered_file_is_filled(self, local, tmp_path):
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(CountingStore(local), 'x', out, Retry())
        assert (tmp_path / 'out').read_bytes() == self.DATA
