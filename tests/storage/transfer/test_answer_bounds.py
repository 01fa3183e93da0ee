"""Whatever a server answers, it costs a bounded number of bytes and of seconds, and ends in an error of ours."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import json
import time
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from headrace import Stream, StreamingDataset
from headrace.errors import HeadraceError, StorageError, StreamError, TransferError
from headrace.storage import Retry, download
from headrace.storage.protocol import Store, StoreOptions
from headrace.storage.resolve import open_store
from headrace.storage.transfer import answer_bounds
from tests.support.servers.hostile_server import hostile_server
from tests.support.stores.every_store import REQUEST_TIMEOUT, URLS

pytestmark = [pytest.mark.cloud, pytest.mark.usefixtures('nothing_of_the_user')]

SECONDS = REQUEST_TIMEOUT
"""The bound of a request in these tests, and how long a server trickles between two bytes at most."""
SOON = 60.0
"""Far more than any of these takes, and far less than what it took without bounds: for ever."""


def say_once(text: bytes):
    return lambda send, over: send(text)


def endless(first: bytes, again: bytes, pause: float = 0.0):
    """Sends one thing, and then another until the client leaves, after a pause each time."""

    def say(send, over):
        send(first)
        while not over.wait(pause):
            send(again)

    return say


NOTHING = b'HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n'
ERROR = b'HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\n'
OBJECT = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nx-goog-generation: 1\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
MEBIBYTE = bytes(1 << 20)
LARGE = {
    'its length': endless(ERROR + b'Content-Length: 1073741824\r\n\r\n', MEBIBYTE),
    'no length': endless(ERROR + b'\r\n', MEBIBYTE),
    'chunks': endless(ERROR + b'Transfer-Encoding: chunked\r\n\r\n', b'100000\r\n' + MEBIBYTE + b'\r\n'),
}
NEVER_ENDING = {
    'interim answers': endless(b'', b'HTTP/1.1 100 Continue\r\n\r\n' * 1000),
    'interim answers, slowly': endless(b'', b'HTTP/1.1 100 Continue\r\n\r\n', 0.02),
    'headers of interim answers': endless(b'', b'HTTP/1.1 100 Continue\r\n' + b'X-A: b\r\n' * 50 + b'\r\n'),
    'headers': endless(OBJECT, b'X-A: b\r\n' * 1000),
    'headers, slowly': endless(OBJECT, b'X', 0.02),
    'a body, slowly': endless(OBJECT + b'Content-Length: 100000\r\n\r\n', b'x', 0.02),
    'a body without length, slowly': endless(OBJECT + b'\r\n', b'x', 0.02),
    'an error, slowly': endless(b'HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n', b'x', 0.02),
}


def kinds_and_ways(ways: Iterable[str], of_all: set[str]) -> list[Any]:
    """Each way with S3, and some with all stores; `make test-all` has all of them."""
    return [
        pytest.param(kind, way, marks=[] if kind == 's3' or way in of_all else pytest.mark.slow, id=f'{kind}, {way}')
        for kind, way in itertools.product(URLS, ways)
    ]


each_kind = pytest.mark.parametrize('kind', URLS)


def get(store: Store, **how: object) -> bytes:
    out = io.BytesIO()
    store.get('key', out, **how)
    return out.getvalue()


@pytest.mark.parametrize(('kind', 'way'), kinds_and_ways(LARGE, {'chunks'}))
def test_an_error_of_any_length_costs_no_more_than_its_beginning(open_at, way):
    with hostile_server(say_once(NOTHING)) as address, pytest.raises(HeadraceError):
        get(open_at(address))  # imports all that there is to import
    with hostile_server(LARGE[way]) as address:
        store = open_at(address)
        begin = time.monotonic()
        tracemalloc.start()
        try:
            with pytest.raises(HeadraceError, match='403|[Ff]orbidden|credentials'):
                get(store)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert time.monotonic() - begin < SOON
        assert peak < 24 << 20


@pytest.mark.parametrize(('kind', 'way'), kinds_and_ways(NEVER_ENDING, {'interim answers', 'a body, slowly'}))
def test_an_answer_that_does_not_end_is_given_up(open_at, way):
    with hostile_server(NEVER_ENDING[way]) as address:
        store = open_at(address)
        begin = time.monotonic()
        with pytest.raises(TransferError, match='key'):
            get(store)
        assert time.monotonic() - begin < SOON


@functools.cache
def bomb() -> bytes:
    """An error whose body of 100 KB unpacks to 96 MiB."""
    packed = gzip.compress(bytes(96 << 20), compresslevel=1)
    return ERROR + b'Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n' % len(packed) + packed


@each_kind
def test_an_error_that_is_packed_unpacks_to_no_more_than_its_beginning(open_at):
    with hostile_server(say_once(bomb())) as address:
        store = open_at(address)
        tracemalloc.start()
        try:
            with pytest.raises(HeadraceError):
                get(store)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 48 << 20


@each_kind
@pytest.mark.parametrize('length', [b'many', b'-5', b'1e3', b'0x10', b'\xb2'])
def test_a_length_that_is_no_number_is_an_error_of_ours(open_at, length):
    with hostile_server(say_once(OBJECT + b'Content-Length: ' + length + b'\r\n\r\nhello')) as address:
        store = open_at(address)
        for ask in (lambda: get(store), lambda: store.head('key')):
            with pytest.raises(TransferError, match='key'):
                ask()


WITHOUT_VERSION = b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello'


@pytest.mark.parametrize('kind', ['s3', 'azure', 'oci'])
def test_a_whole_object_is_read_without_an_etag_and_a_part_is_not(kind):
    extra = {'account_name': 'account'} if kind == 'azure' else {}
    for part in (False, True):
        status = b'HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-5/9\r\n' if part else b'HTTP/1.1 200 OK\r\n'
        with hostile_server(say_once(status + b'Content-Length: 5\r\n\r\nhello')) as address:
            options = StoreOptions(
                endpoint_url=address, region='us-east-1', anonymous=True, request_timeout=SECONDS, extra=extra
            )
            store = open_store(URLS[kind], options)
            if part:
                with pytest.raises(TransferError, match='key.* no ETag'):
                    get(store, offset=1, size=5)
            else:
                assert get(store) == b'hello'


@each_kind
def test_an_object_without_a_length_is_read_or_refused_by_name(open_at):
    with hostile_server(say_once(OBJECT + b'\r\nhello')) as address:
        try:
            assert get(open_at(address, SOON)) == b'hello'
        except TransferError as error:
            assert 'Content-Length'.lower() in str(error).lower()  # noqa: PT017 - of Databricks alone


@each_kind
def test_an_object_is_not_described_without_a_length(open_at):
    with hostile_server(say_once(OBJECT + b'\r\n')) as address, pytest.raises(TransferError, match='key'):
        open_at(address).head('key')


@each_kind
@pytest.mark.parametrize('header', [b'Last-Modified: yesterday', b'ETag: \xff\xfe', b'Content-Range: x'])
def test_other_headers_that_break_the_rules_are_no_foreign_exception(open_at, header):
    answer = b'HTTP/1.1 206 Partial Content\r\nETag: "1"\r\nContent-Length: 5\r\n' + header + b'\r\n\r\nhello'
    with hostile_server(say_once(answer)) as address:
        store = open_at(address)
        for ask in (lambda: get(store, size=5), lambda: store.head('key'), lambda: list(store.list(''))):
            with contextlib.suppress(HeadraceError):
                ask()


@each_kind
def test_a_slow_link_has_as_long_as_its_bytes_take(open_at):
    """At five times the slowest pace, for longer than the bound of a request."""

    def say(send, over):
        send(OBJECT + b'Content-Length: 10240\r\n\r\n')
        for _ in range(10):
            over.wait(0.2)
            send(bytes(1024))

    with hostile_server(say) as address:
        assert get(open_at(address, 1.0)) == bytes(10240)


def test_a_dataset_of_a_server_that_trickles_is_an_error_in_time(tmp_path):
    with hostile_server(NEVER_ENDING['a body, slowly']) as address:
        stream = Stream(
            remote=URLS['s3'],
            local=str(tmp_path / 'local'),
            endpoint_url=address,
            region='us-east-1',
            anonymous=True,
            download_retry=0,
            store_options={'request_timeout': SECONDS},
        )
        with pytest.raises(TransferError, match=r'takes too long: \d+ bytes .*request_timeout'):
            StreamingDataset(streams=[stream])


@pytest.mark.parametrize('seconds', [0, -1, 'soon', True])
def test_a_bound_is_a_number_of_seconds(tmp_path, seconds):
    stream = Stream(remote='s3://b/c', local=str(tmp_path), store_options={'request_timeout': seconds})
    with pytest.raises(StreamError, match='request_timeout.*number of seconds above 0'):
        StreamingDataset(streams=[stream])


VERSION = b'ETag: "1"\r\nx-goog-generation: 1\r\nX-Linked-ETag: "1"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
WHOLE = b'0123456789'


def say_range(content_range: bytes | None, body: bytes, status: bytes = b'206 Partial Content', length: bool = True):
    head = b'HTTP/1.1 ' + status + b'\r\n' + VERSION
    if content_range is not None:
        head += b'Content-Range: ' + content_range + b'\r\n'
    if length:
        head += b'Content-Length: %d\r\n' % len(body)
    return say_once(head + b'Connection: close\r\n\r\n' + body)


OTHER_RANGES = {
    'from the beginning': say_range(b'bytes 0-3/10', b'0123'),
    'one byte later': say_range(b'bytes 3-6/10', b'3456'),
    'longer': say_range(b'bytes 2-6/10', b'23456'),
    'shorter, with more behind it': say_range(b'bytes 2-4/10', b'234'),
    'shorter, of unknown size': say_range(b'bytes 2-4/*', b'234'),
    'an end behind the object': say_range(b'bytes 2-5/4', b'2345'),
    'more bytes than it says': say_range(b'bytes 2-5/10', b'234567'),
    'fewer bytes than it says': say_range(b'bytes 2-5/10', b'23'),
    'no length, more bytes': say_range(b'bytes 2-5/10', b'234567', length=False),
    'no length, fewer bytes': say_range(b'bytes 2-5/10', b'234', length=False),
    'no numbers': say_range(b'bytes two-five/ten', b'2345'),
    'no range': say_range(None, b'2345'),
    'the whole object': say_range(None, WHOLE, status=b'200 OK'),
}


@pytest.mark.parametrize(
    ('kind', 'way'), kinds_and_ways(OTHER_RANGES, {'from the beginning', 'no range', 'the whole object'})
)
def test_another_range_than_was_asked_for_is_no_part_of_the_object(open_at, way):
    with hostile_server(OTHER_RANGES[way]) as address:
        out = io.BytesIO()
        with pytest.raises(TransferError, match='/key'):
            open_at(address).get('key', out, offset=2, size=4)
        assert b'2345'.startswith(out.getvalue())


@each_kind
def test_a_wrong_range_is_asked_for_again_and_then_named(open_at, tmp_path):
    """The first answer breaks off; the second is another range, and from then on each is the one of a list."""
    broken = b'HTTP/1.1 200 OK\r\n' + VERSION + b'Content-Length: 10\r\n\r\n01'
    right = say_range(b'bytes 2-9/10', b'23456789')
    wrong = say_range(b'bytes 0-7/10', b'01234567')
    retry = Retry(attempts=3, first_delay=0.01)
    for last in (right, wrong):
        answers = iter([say_once(broken), wrong])
        with (
            hostile_server(lambda send, over, last=last, answers=answers: next(answers, last)(send, over)) as address,
            open(tmp_path / 'out', 'w+b', buffering=0) as out,
        ):
            store = open_at(address, SOON)
            if last is right and 'databricks' not in type(store).__module__:  # its versions tell the size
                assert download(store, 'key', out, retry) == 10
                assert (tmp_path / 'out').read_bytes() == WHOLE
            elif last is wrong:
                with pytest.raises(TransferError, match=f'{store.url}/key was asked for bytes=2-, .*bytes 0-7/10'):
                    download(store, 'key', out, retry)


def page_of(kind: str, keys: list[str], token: str) -> bytes:
    """A page of a listing that goes on, as the server of a store sends it."""
    page = PAGES[kind](keys, token)
    text = page if isinstance(page, str) else json.dumps(page)
    head = f'HTTP/1.1 200 OK\r\nContent-Type: application/{"xml" if text is page else "json"}\r\n'
    link = f'Link: <http://127.0.0.1/?cursor={token}>; rel="next"\r\n'
    return f'{head}{link}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}'.encode()


PAGES: dict[str, Any] = {
    's3': lambda keys, token: (
        '<ListBucketResult><IsTruncated>true</IsTruncated>'
        + ''.join(f'<Contents><Key>{key}</Key><Size>1</Size><ETag>"1"</ETag></Contents>' for key in keys)
        + f'<NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>'
    ),
    'azure': lambda keys, token: (
        '<?xml version="1.0"?><EnumerationResults><Blobs>'
        + ''.join(
            f'<Blob><Name>{key}</Name><Properties><Content-Length>1</Content-Length><Etag>1</Etag>'
            '<BlobType>BlockBlob</BlobType></Properties></Blob>'
            for key in keys
        )
        + f'</Blobs><NextMarker>{token}</NextMarker></EnumerationResults>'
    ),
    'gcs': lambda keys, token: {
        'items': [{'name': key, 'size': '1', 'generation': '1'} for key in keys],
        'nextPageToken': token,
    },
    'oci': lambda keys, token: {
        'objects': [{'name': key, 'size': 1, 'etag': '1'} for key in keys],
        'nextStartWith': token,
    },
    'hf': lambda keys, token: [{'type': 'file', 'path': key, 'size': 1, 'oid': '1'} for key in keys],
    'databricks': lambda keys, token: {
        'contents': [{'path': f'/{key}', 'file_size': 1, 'last_modified': 1000} for key in keys],
        'next_page_token': token,
    },
}


@pytest.mark.parametrize(('kind', 'way'), kinds_and_ways(['same', 'new tokens', 'nothing'], {'same', 'new tokens'}))
def test_a_listing_that_gets_no_further_is_an_error(kind, open_at, way):
    numbers = itertools.count()

    def say(send, over):
        token = 'again' if way == 'same' else f't{next(numbers)}'
        send(page_of(kind, [] if way == 'nothing' else ['a', 'b'], token))

    with hostile_server(say) as address, pytest.raises(StorageError, match='does not end|same next token'):
        list(open_at(address).list(''))


def test_a_listing_of_ever_new_names_ends(monkeypatch):
    monkeypatch.setattr(answer_bounds, 'PAGES', 10)
    items = answer_bounds.items_of('s3://bucket/a', ([f'{number}'] for number in itertools.count()), str)
    with pytest.raises(StorageError, match=r'Listing s3://bucket/a: the server sent more than 10 pages'):
        list(items)
