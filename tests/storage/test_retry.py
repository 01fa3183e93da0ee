import pytest

from headrace.errors import ChecksumError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage import Retry
from headrace.storage.retry import BrokenTransferError


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


def test_patience_outlasts_attempts():
    time = Time()
    with pytest.raises(TransferError, match='the bound is 2 failures in a row, in 30 s') as caught:
        time.retry(attempts=2, patience=30, max_delay=8).call('X', failing(100))
    assert 30 <= time.now <= 38
    assert len(time.slept) > 3
    assert 'no luck' in str(caught.value)
    assert Time().retry(attempts=1, patience=30).call('X', failing(5)) == 'done'


def test_patience_counts_from_the_first_failure_without_progress():
    time, reached = Time(), 0

    def attempt():
        nonlocal reached
        if len(time.slept) == 8:
            reached = 1
        raise TransferError('no luck')

    with pytest.raises(TransferError):
        time.retry(attempts=2, patience=30, first_delay=3, max_delay=3).call('X', attempt, progress=lambda: reached)
    assert time.now >= sum(time.slept[:8]) + 30


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


def test_who_is_told_to_come_back_later_has_not_failed_until_then():
    time, told = Time(), BrokenTransferError.at('429', retry_after=60)
    assert time.retry(patience=30).call('X', failing(4, told)) == 'done'
    assert time.slept == [60] * 4
    time = Time()
    with pytest.raises(TransferError, match='the bound is 600 s'):
        time.retry(patience=30).call('X', failing(100, told))
    assert time.slept == [60] * 10
    time = Time()
    with pytest.raises(TransferError, match='after 1 attempt in'):
        time.retry(attempts=1).call('X', failing(1, told))


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
