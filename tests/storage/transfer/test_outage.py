"""A server that hangs is named while requests wait for it, long before their time-outs."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import HeadraceError, TransferError
from headrace.storage import Retry
from headrace.storage.cache import index_fetch
from headrace.storage.transfer import retry
from headrace.storage.transfer.download import download
from headrace.storage.transfer.retry import Server
from tests.support.programs.waiting import until

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
def remote(server) -> str:
    """A bucket of the test's own: this process may have named others."""
    return f's3://bucket-{server.getsockname()[1]}/data'


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
