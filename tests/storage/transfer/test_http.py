import contextlib
import errno
import io
import socket

import pytest

from headrace.errors import ChecksumError, ConfigError, StorageError, TransferError
from headrace.storage.protocol import ObjectInfo
from headrace.storage.transfer.http import ReadRequest, SourcePart, missing_certificates
from tests.support.stores.every_store import URLS


class Dribbling(io.BytesIO):
    """As an unbuffered file may, it gives less than it is asked for."""

    def read(self, size=-1):
        return super().read(min(size, 3) if size >= 0 else 3)


@pytest.mark.parametrize('sizes', [[-1], [None], [4, 4, 2], [10, 1], [7, -1]])
def test_less_than_was_asked_for_comes_at_the_end_only(sizes):
    source = Dribbling(b'__0123456789__')
    source.seek(2)
    part = SourcePart(source, 10)
    wanted = [10 if size is None or size < 0 else size for size in sizes]
    chunks = [part.read(size) for size in sizes]
    assert b''.join(chunks) == b'0123456789'
    assert [len(chunk) for chunk in chunks[:-1]] == wanted[:-1]
    assert part.read(1) == part.read() == b''
    part.seek(8)
    assert part.read() == b'89'


def test_a_source_that_ends_early_is_an_error():
    with pytest.raises(ConfigError, match='told 10 bytes, but the source ended 3 bytes early'):
        SourcePart(Dribbling(b'0123456'), 10).read()


def received(body, out=None, **answer):
    source = io.BytesIO(body)
    how = {'etag': 'v', 'length': len(body), 'part': None} | answer
    wanted = ReadRequest('s3://b/x', how.pop('offset', 0), how.pop('size', None), how.pop('wanted', None))
    sink = io.BytesIO() if out is None else out
    etag = wanted.receive(lambda: source.read(3), sink, mapped_errors=contextlib.nullcontext, **how)
    return etag, sink.getvalue()


class TestReceive:
    def test_it_tells_the_version(self):
        assert received(b'0123456789') == ('v', b'0123456789')
        assert received(b'0123456789', etag='') == ('', b'0123456789')
        assert received(b'2345', offset=2, size=4, part='bytes 2-5/10', wanted='v') == ('v', b'2345')

    @pytest.mark.parametrize('etag', ['w', ''])
    def test_another_version_than_the_one_that_was_asked_for_is_refused_before_a_byte(self, etag):
        out = io.BytesIO()
        with pytest.raises(TransferError, match='s3://b/x changed') as caught:
            received(b'01', out, wanted='v', etag=etag)
        assert caught.value.changed
        assert out.getvalue() == b''

    @pytest.mark.parametrize('asked', [{'offset': 2}, {'size': 4}, {'offset': 2, 'size': 4}])
    def test_a_server_that_ignores_the_range_is_named_as_one(self, asked):
        with pytest.raises(StorageError, match='ignored the range'):
            received(b'0123456789', **asked)

    def test_the_whole_may_be_the_range(self):
        assert received(b'0123', size=4) == ('v', b'0123')

    def test_a_shorter_object_has_no_such_range(self):
        with pytest.raises(ConfigError, match='offset 2, size 9 .* has 4 bytes from there'):
            received(b'2345', offset=2, size=9, part='bytes 2-5/6')

    @pytest.mark.parametrize('answer', [{'length': 9}, {'length': None, 'size': 9}])
    def test_a_body_that_ends_early_is_broken_and_names_its_version(self, answer):
        out = io.BytesIO()
        with pytest.raises(TransferError, match='broke off after 4 of 9 bytes') as caught:
            received(b'0123', out, **answer)
        assert caught.value.etag == 'v'
        assert out.getvalue() == b'0123'

    def test_an_answer_of_unknown_length_writes_no_more_than_was_asked_for(self):
        sink = io.BytesIO()
        with pytest.raises(StorageError, match='ignored the range'):
            received(b'hello world', sink, size=7, length=None)
        assert sink.getvalue() == b'hello '

    def test_an_answer_of_unknown_length_ends_where_it_ends(self):
        assert received(b'0123', length=None) == ('v', b'0123')


class TestNothingLeft:
    INFO = ObjectInfo('x', 10, 'v')

    @pytest.mark.parametrize('wanted', [None, 'v'])
    def test_right_at_the_end(self, wanted):
        assert ReadRequest('u', 10, None, wanted).nothing_left(self.INFO) == 'v'

    @pytest.mark.parametrize(('offset', 'size'), [(11, None), (10, 1), (11, 1)])
    def test_beyond_it(self, offset, size):
        message = (
            rf'offset {offset}, size {size} of s3://b/x, which has \d bytes .* shorter than its index says: restore'
        )
        with pytest.raises(ChecksumError, match=message) as raised:
            ReadRequest('s3://b/x', offset, size).nothing_left(self.INFO)
        assert isinstance(raised.value, ConfigError)  # as all stores have raised it
        assert str(raised.value).startswith('A range lies inside its object; got')

    @pytest.mark.parametrize(('offset', 'size', 'wanted'), [(10, None, 'w'), (4, None, None), (4, 2, 'v')])
    def test_of_another_version(self, offset, size, wanted):
        with pytest.raises(TransferError, match='changed'):
            ReadRequest('u', offset, size, wanted).nothing_left(self.INFO)


@pytest.fixture
def variables(monkeypatch):
    """Sets variables of the environment in place of those that a developer has for proxies and certificates."""
    names = [f'{name}_proxy' for name in ('http', 'https', 'all', 'no')]
    for name in (
        *names,
        *map(str.upper, names),
        'SSL_CERT_FILE',
        'REQUESTS_CA_BUNDLE',
        'CURL_CA_BUNDLE',
        'AWS_CA_BUNDLE',
    ):
        monkeypatch.delenv(name, raising=False)

    def variables(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return variables


@pytest.mark.cloud
@pytest.mark.parametrize(
    'kind',
    # The SDK of Databricks looks for its server for five seconds.
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind == 'databricks')) for kind in URLS],
)
def test_a_proxy_that_does_not_answer_is_named_with_the_variable_that_goes_around_it(kind, open_at, variables):
    store = open_at('http://127.0.0.1:9', 60)

    def told() -> str:
        # Only boto3 looks for proxies when its client is made, and only that of Databricks takes long to make.
        used = open_at('http://127.0.0.1:9', 60) if kind == 's3' else store
        with pytest.raises(TransferError) as raised:
            used.get('key', io.BytesIO())
        return str(raised.value)

    assert 'proxy' not in told().lower()
    variables(HTTP_PROXY='http://name:a-password@127.0.0.1:1')
    fix = 'correct it, or add 127.0.0.1 to NO_PROXY if the proxy does not reach it.'
    assert told().endswith(f' HTTP_PROXY names a proxy for 127.0.0.1: {fix}')
    assert 'a-password' not in told()
    variables(no_proxy='localhost')
    assert 'add 127.0.0.1 to no_proxy' in told()  # which wins over NO_PROXY
    variables(no_proxy='localhost,127.0.0.1')
    assert 'proxy' not in told().lower()


@pytest.mark.cloud
@pytest.mark.parametrize('kind', URLS)
def test_a_missing_file_of_certificates_is_named_by_its_variable(kind, open_at, variables, tmp_path):
    variables(REQUESTS_CA_BUNDLE=str(tmp_path / 'gone.pem'), AWS_CA_BUNDLE=str(tmp_path / 'gone.pem'))
    with socket.create_server(('127.0.0.1', 0)) as server:
        store = open_at(f'https://127.0.0.1:{server.getsockname()[1]}', 60)
        text = 'There is no such file of certificates. Correct or unset REQUESTS_CA_BUNDLE and AWS_CA_BUNDLE.'
        with pytest.raises(ConfigError, match=f'Reading .* {text}'):
            store.get('key', io.BytesIO())


def test_other_errors_are_not_explained_by_certificates(variables):
    assert not missing_certificates(FileNotFoundError(errno.ENOENT, 'of no certificate'))
    variables(SSL_CERT_FILE='/missing')
    assert missing_certificates(FileNotFoundError(errno.ENOENT, 'this one'))
    assert not missing_certificates(OSError(errno.ENETUNREACH, 'Network is unreachable'))
    assert not missing_certificates(ConnectionRefusedError(errno.ECONNREFUSED, 'Connection refused'))
    assert not missing_certificates(ValueError('of no file'))
