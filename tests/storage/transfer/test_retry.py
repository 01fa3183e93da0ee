"""When a request is tried again, and when a server that hangs is named."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import ChecksumError, ConfigError, HeadraceError, ObjectNotFoundError, TransferError
from headrace.storage import Retry
from headrace.storage.cache import index_fetch
from headrace.storage.transfer import retry
from headrace.storage.transfer.download import download
from headrace.storage.transfer.http import seconds_to_wait
from headrace.storage.transfer.retry import BrokenTransferError, Server
from tests.support.programs.waiting import until


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


@pytest.mark.parametrize('asked', ['0', '-5', 'nan', '-inf', '1e-9', 'soon', 'Thu, 01 Jan 1970 00:00:00 GMT'])
def test_a_server_that_asks_for_no_pause_gets_few_requests(asked):
    time = Time()
    with pytest.raises(TransferError):
        error = BrokenTransferError.at('503', retry_after=seconds_to_wait(asked))
        time.retry(patience=30).call('X', failing(10**6, error))
    assert 30 <= time.now < 60
    assert len(time.slept) < 60


def test_a_store_may_tell_no_number_of_seconds():
    time = Time()
    time.retry().call('X', failing(1, BrokenTransferError.at('503', retry_after=float('nan'))))
    assert 0 <= time.slept[0] <= 0.5


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


class TestOutage:
    """A server that does not answer is named after 3 s, once for each outage, and is tried again."""

    @pytest.fixture
    def time(self):
        return Time()

    @pytest.fixture
    def download(self, time):
        """Downloads a URL from a server that refuses until a time, and asks for one attempt a second."""
        retry = time.retry(attempts=1000)

        def download(url, until):
            def attempt():
                if time.now < until:
                    raise BrokenTransferError.at(f'{url}: connection refused.', retry_after=1.0)
                return 'done'

            return retry.call(f'Downloading {url}', attempt)

        return download

    @staticmethod
    def told(caplog):
        return [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']

    def test_it_is_told_once(self, time, download, caplog):
        assert download('s3://bucket/a', until=2) == 'done'
        assert not self.told(caplog)
        assert download('s3://bucket/a', until=40) == 'done'
        (message,) = self.told(caplog)
        assert message.startswith('Downloading s3://bucket/a has failed for 2.0 s, and is tried again in 1.0 s.')
        assert message.endswith('s3://bucket/a: connection refused.')
        assert time.now == 40

    def test_all_objects_of_a_server_have_one_outage(self, time, caplog):
        retry = time.retry(attempts=9)
        for name in 'abc':
            with pytest.raises(TransferError):
                retry.call(f'Downloading s3://bucket/{name}', failing(100, BrokenTransferError.at('x', retry_after=1)))
        assert len(self.told(caplog)) == 1
        with pytest.raises(TransferError):
            retry.call('Downloading s3://another/a', failing(100, BrokenTransferError.at('x', retry_after=1)))
        assert len(self.told(caplog)) == 2

    def test_the_next_outage_is_told_again(self, time, download, caplog):
        for end in (10, 20, 30):
            assert download('s3://bucket/a', end) == 'done'
        assert len(self.told(caplog)) == 3

    def test_a_slow_answer_counts_as_silence(self, time, caplog):
        def attempt():
            time.now += 10  # until the time-out
            raise TransferError('timed out')

        with pytest.raises(TransferError):
            time.retry(attempts=2, first_delay=0).call('Downloading s3://bucket/a', attempt)
        assert len(self.told(caplog)) == 1

    def test_a_transfer_that_moves_is_not_silent(self, time, caplog):
        reached = 0

        def attempt():
            nonlocal reached
            time.now += 10
            reached += 1
            if reached < 9:
                raise TransferError('reset')
            return 'done'

        retry = time.retry(attempts=2, first_delay=1)
        assert retry.call('Downloading s3://bucket/a', attempt, progress=lambda: reached) == 'done'
        assert not self.told(caplog)

    def test_it_tells_no_secret(self, time, download, caplog):
        assert download('tape://user:hunter2@host/a', until=9) == 'done'
        (message,) = self.told(caplog)
        assert 'tape://user:***@host' in message
        assert 'hunter2' not in message


ONE_SHARD = 4  # samples, and a batch
HOURS = 9999.0


@pytest.fixture(params=['accepts no connection', 'never answers'])
def server(request) -> Iterator[socket.socket]:
    """One that hangs until it is shut down: the system drops what comes, or accepts it and nobody reads it."""
    hangs_at_once = request.param == 'accepts no connection'
    with socket.create_server(('127.0.0.1', 0), backlog=0 if hangs_at_once else 64) as listening:
        clients = [socket.socket() for _ in range(4 * hangs_at_once)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield listening
        for client in clients:
            client.close()


@pytest.fixture
def log(tmp_path) -> Iterator[Path]:
    """What this process and its workers log."""
    path = tmp_path / 'log'
    handler = logging.FileHandler(path)
    logging.getLogger('headrace').addHandler(handler)
    yield path
    logging.getLogger('headrace').removeHandler(handler)
    handler.close()


@pytest.fixture
def data(tmp_path, make_dataset_in) -> Path:
    return make_dataset_in(tmp_path, 'data', 3 * ONE_SHARD, per_shard=ONE_SHARD)


@pytest.fixture
def remote() -> str:
    """A bucket of the test's own: this process may have named others."""
    return f's3://bucket-{uuid4().hex}/data'


@pytest.fixture
def open_dataset(server, data, remote, tmp_path, monkeypatch) -> Callable[..., StreamingDataset]:
    """Opens a dataset of the server, for which requests wait for hours."""
    monkeypatch.setattr(retry, 'SILENCE', 0.1)
    monkeypatch.setattr(index_fetch, 'ANSWER_TIMEOUT', 0.1)

    def open_it(*, with_index: bool) -> StreamingDataset:
        cache = tmp_path / 'cache'
        cache.mkdir()
        if with_index:
            shutil.copy(data / 'index.json', cache)
        stream = Stream(
            remote=remote,
            local=str(cache),
            endpoint_url='http://{}:{}'.format(*server.getsockname()),
            region='us-east-1',
            anonymous=True,
            download_retry=0,
            download_timeout=HOURS,
            store_options={'connect_timeout': HOURS},
        )
        return StreamingDataset(streams=[stream], batch_size=ONE_SHARD)

    return open_it


def notices(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if 'has received nothing' in line]


def fail(read: Callable[[], object], server: socket.socket, log: Path) -> str:
    """Read from the server, which is shut down once it is named; returns how it was."""

    def shut_down_later() -> None:
        try:
            until(lambda: notices(log))
        finally:
            server.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=shut_down_later)
    thread.start()
    with pytest.raises(HeadraceError):
        read()
    thread.join()
    (notice,) = notices(log)
    return notice


def test_it_is_named_when_a_dataset_is_opened(open_dataset, server, remote, log):
    notice = fail(lambda: open_dataset(with_index=False), server, log)
    assert notice.startswith(f'Downloading {remote}/index.json has received nothing for ')


@pytest.mark.parametrize('workers', [0, 1])
def test_it_is_named_when_a_reader_waits_for_a_shard(open_dataset, server, remote, log, workers):
    loader = StreamingDataLoader(open_dataset(with_index=True), num_workers=workers)
    notice = fail(lambda: next(iter(loader)), server, log)
    assert notice.startswith(f'Downloading {remote}/shard.')


class Trickle:
    """A store whose bytes come one by one, each with a tenth less than the time that counts as silence."""

    url = 's3://bucket/data'

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.reader = threading.get_ident()

    def clock(self) -> float:
        self.looks += threading.get_ident() == self.reader
        return self.now

    def get(self, _key, out, **_range):
        for _ in range(5):
            self.now += 0.9 * retry.SILENCE
            out.write(b'x')
            looks = self.looks
            until(lambda looks=looks: self.looks > looks + 2)
        return ''


def test_a_server_that_is_slow_is_not_named(tmp_path, monkeypatch, log):
    monkeypatch.setattr(retry, 'SILENCE', 0.05)
    store = Trickle()
    with (tmp_path / 'out').open('w+b', buffering=0) as out:
        assert download(store, 'a', out, Retry(clock=store.clock)) == 5
    assert not notices(log)


class TestWaiting:
    """When a request that waits has its server named."""

    @pytest.fixture
    def wait(self, log) -> Callable[..., tuple[float, int]]:
        """At a time, what is said of a request: seconds until the next look, and the notices until then."""
        self.now = 0.0
        self.server = Server('s3://bucket', self.clock)

        def wait(now: float, name: str = 'a', since: float = 0) -> tuple[float, int]:
            self.now = now
            return self.server.waiting(f'Downloading s3://bucket/{name}', since=since), len(notices(log))

        return wait

    def clock(self) -> float:
        return self.now

    def test_bytes_of_other_requests_count(self, wait):
        self.now = 2
        assert self.server.heard() == 2
        assert wait(3) == (2, 0)
        assert wait(5) == (3, 1)

    def test_it_is_named_once(self, wait):
        assert wait(1) == (2, 0)
        assert wait(3) == (3, 1)
        assert wait(6) == (3, 1)
        assert wait(6, 'b', 1) == (3, 1)

    def test_it_is_named_again_in_the_next_outage(self, wait):
        wait(3)
        self.server.ended()
        assert wait(4, 'b', 3) == (2, 1)
        assert wait(6, 'b', 3) == (3, 2)

    def test_a_server_that_answers_others_is_not_silent(self, wait):
        wait(2)
        self.server.ended()
        assert wait(4) == (1, 0)

    def test_it_is_named_for_a_wait_or_for_a_failure(self, wait, log):
        wait(3)
        error = TransferError('timed out')
        self.server.failed('Downloading s3://bucket/a', error, since=0, delay=1)
        assert len(log.read_text().splitlines()) == 1
