"""What stores over HTTP share, with a client that answers as it is told."""

from __future__ import annotations

import io

import pytest

from headrace.errors import AccessDeniedError, ConfigError
from headrace.storage import ObjectInfo, StoreOptions
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.transfer.retry import BrokenTransferError


class ClientError(Exception):
    pass


class Store(BucketStore):
    def __init__(self, answer):
        super().__init__('a/b/', StoreOptions(), extra=(), title='a store')
        self.answer, self.asked, self.closed = answer, [], 0

    @property
    def url(self):
        return 'x://bucket/a/b'

    def head(self, key):
        return ObjectInfo(key, 5, 'v1')

    def _open(self, name, wanted):
        self.asked.append((name, wanted.range))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            return None
        return Body(self.answer.read, self._close, 'v1', None, None if wanted.range is None else 'bytes 2-4/5')

    def _close(self):
        self.closed += 1

    def _connect(self):
        return 'the connection'

    def _server(self):
        return 'the server'

    def _explained(self, doing, key, error, connection):
        refused = AccessDeniedError(f'{doing} {key} over {connection}')
        return refused if isinstance(error, PermissionError) else None

    def _network_errors(self):
        return (ClientError,)


class Failing(io.BytesIO):
    def read(self, size=-1):
        return super().read(size) or self.fail()

    def fail(self):
        raise ClientError('gone')


def read(answer, **how):
    store, out = Store(answer), io.BytesIO()
    return store, store.get('c', out, **how), out.getvalue()


def test_it_reads_objects_and_ranges():
    store, version, data = read(io.BytesIO(b'12345'))
    assert (store.asked, store.closed, version, data) == ([('a/b/c', None)], 1, 'v1', b'12345')
    store, version, data = read(io.BytesIO(b'345'), offset=2)
    assert (store.asked, store.closed, version, data) == ([('a/b/c', 'bytes=2-')], 1, 'v1', b'345')


def test_an_empty_range_needs_no_request():
    assert read(None, size=0)[0].asked == []
    assert read(None, offset=5)[1:] == ('v1', b'')
    with pytest.raises(ConfigError, match='lies inside its object'):
        read(None, offset=6)
    with pytest.raises(ConfigError, match='relative to its root'):
        Store(None).get('../c', io.BytesIO())


@pytest.mark.parametrize(
    ('error', 'kind', 'text'),
    [
        (PermissionError(), AccessDeniedError, 'Reading c over the connection'),
        (ClientError('gone'), BrokenTransferError, 'Reading x://bucket/a/b/c at the server broke: ClientError: gone.'),
        (TimeoutError('late'), BrokenTransferError, 'at the server broke: TimeoutError: late.'),
        (KeyError('size'), BrokenTransferError, 'at the server brought an answer that breaks the rules'),
        (ConfigError('as it is'), ConfigError, '^as it is'),
        (MemoryError('too much'), MemoryError, '^too much'),
    ],
)
def test_errors_of_the_client_become_those_of_headrace(error, kind, text):
    with pytest.raises(kind, match=text):
        read(error)


def test_a_body_that_breaks_off_names_its_version():
    store = Store(Failing(b'123'))
    with pytest.raises(BrokenTransferError, match='gone') as raised:
        store.get('c', out := io.BytesIO())
    assert (raised.value.etag, out.getvalue(), store.closed) == ('v1', b'123', 1)


def test_errors_of_the_source_of_an_upload_stay():
    with pytest.raises(KeyError), Store(None)._mapped_errors('Writing', 'c'):
        raise KeyError('mine')
