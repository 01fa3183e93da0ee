import functools
import os
import sys

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage import Retry, StoreOptions, download, open_store
from headrace.storage.stores.s3 import S3Store
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import StoreFaultContract, through_proxy
from headrace.testing.stores import StoreContract, put_bytes, read_bytes

pytestmark = pytest.mark.s3

DATA = os.urandom((3 << 20) + 12345)
PROGRAM = """
import datetime, json, os
with open({calls!r}, 'a') as calls:
    print('called', file=calls)
# Within ten minutes of their end they must not be used any more.
end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
print(json.dumps({{
    'Version': 1,
    'AccessKeyId': os.environ['TEST_AWS_ACCESS_KEY_ID'],
    'SecretAccessKey': os.environ['TEST_AWS_SECRET_ACCESS_KEY'],
    'Expiration': end.isoformat(),
}}))
"""


class TestS3Store(StoreContract):
    ROW = '`s3://`: {s3_server}'

    @pytest.fixture
    def store(self, s3_server):
        return s3_server.store(s3_server.new_bucket(), 'some/prefix')


class TestS3StoreWithoutPrefix(StoreContract):
    ROW = '`s3://`: moto'

    @pytest.fixture
    def store(self, moto):
        return moto.store(moto.new_bucket())


class TestS3Faults(StoreFaultContract):
    ROW = '`s3://`: {server}'

    @pytest.fixture(params=['moto', pytest.param('rgw', marks=pytest.mark.slow)])
    def server(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture
    def direct(self, server):
        return server.store(server.new_bucket(), 'p')

    @pytest.fixture
    def proxied(self, server, direct, read_timeout):
        store = functools.partial(server.store, direct.bucket, 'p')
        # Ceph is several programs: on a busy machine half a second is short.
        seconds = 3 * read_timeout if server.name == 'rgw' else read_timeout
        with through_proxy(server.endpoint_url, store, read_timeout=seconds) as proxied:
            yield proxied


@pytest.fixture
def bucket(s3_server):
    name = s3_server.new_bucket()
    put_bytes(s3_server.store(name), 'x', DATA)
    return name


class TestErrors:
    def test_a_missing_key_says_that_the_bucket_exists(self, s3_server, bucket):
        for call in (s3_server.store(bucket).head, lambda key: read_bytes(s3_server.store(bucket), key)):
            with pytest.raises(ObjectNotFoundError, match=rf"s3://{bucket}/nothing: the bucket '{bucket}' exists"):
                call('nothing')

    def test_a_missing_bucket_is_named(self, s3_server):
        store = s3_server.store('headrace-no-such-bucket')
        calls = (lambda: store.head('x'), lambda: read_bytes(store, 'x'), lambda: list(store.list('')))
        for call in (*calls, lambda: put_bytes(store, 'x', b'1')):
            with pytest.raises(ObjectNotFoundError, match="the bucket 'headrace-no-such-bucket' does not exist"):
                call()

    @pytest.mark.parametrize('variable', ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'])
    def test_wrong_credentials_name_their_source_and_the_endpoint(self, rgw, monkeypatch, variable):
        bucket = rgw.new_bucket()
        monkeypatch.setenv(variable, 'wrong')
        store = rgw.store(bucket)
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: put_bytes(store, 'x', b'')):
            with pytest.raises(AccessDeniedError, match=rf"{rgw.endpoint_url}.*credentials from 'env'") as caught:
                call()
            assert 'testsecret' not in str(caught.value)

    def test_no_credentials_at_all(self, moto, monkeypatch):
        monkeypatch.delenv('AWS_ACCESS_KEY_ID')
        monkeypatch.delenv('AWS_SECRET_ACCESS_KEY')
        monkeypatch.setenv('AWS_SHARED_CREDENTIALS_FILE', '/nonexistent')
        with pytest.raises(AccessDeniedError, match='boto3 found none'):
            read_bytes(moto.store('b'), 'x')

    def test_credentials_that_come_later_are_found(self, moto, monkeypatch):
        bucket = moto.new_bucket()
        put_bytes(moto.store(bucket), 'x', b'1')
        store = moto.store(bucket)
        with monkeypatch.context() as without:
            without.delenv('AWS_ACCESS_KEY_ID')
            without.delenv('AWS_SECRET_ACCESS_KEY')
            without.setenv('AWS_SHARED_CREDENTIALS_FILE', '/nonexistent')
            with pytest.raises(AccessDeniedError, match='boto3 found none'):
                read_bytes(store, 'x')
        assert read_bytes(store, 'x') == b'1'

    def test_credentials_are_renewed_before_they_expire(self, rgw, monkeypatch, tmp_path):
        """They come from a program, as those of a role or of single sign-on may."""
        bucket = rgw.new_bucket()
        put_bytes(rgw.store(bucket), 'x', b'1')
        calls, program = tmp_path / 'calls', tmp_path / 'program.py'
        program.write_text(PROGRAM.format(calls=str(calls)))
        config = tmp_path / 'config'
        config.write_text(f'[profile short]\ncredential_process = "{sys.executable}" "{program}"\n')
        store = rgw.store(bucket, extra={'profile': 'short'})
        for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'):
            monkeypatch.setenv(f'TEST_{name}', os.environ[name])
            monkeypatch.delenv(name)
        monkeypatch.setenv('AWS_CONFIG_FILE', str(config))
        for number in range(1, 4):
            assert read_bytes(store, 'x') == b'1'
            assert len(calls.read_text().split()) >= number

    def test_keys_that_something_else_renews_are_read_again(self, rgw, monkeypatch, tmp_path):
        """Temporary keys in a file, which a tool for single sign-on or a timer writes anew."""
        bucket = rgw.new_bucket()
        data = os.urandom(17 << 20)  # of several ranges
        put_bytes(rgw.store(bucket), 'x', data)
        file = tmp_path / 'credentials'
        keys = [os.environ[name] for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY')]

        def write(access_key, secret_key):
            file.write_text(f'[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n')

        for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'):
            monkeypatch.delenv(name)
        monkeypatch.setenv('AWS_SHARED_CREDENTIALS_FILE', str(file))
        with FaultProxy(rgw.endpoint_url) as proxy:
            store, path = rgw.store(bucket, endpoint_url=proxy.endpoint_url), tmp_path / 'out'

            def fetch(**options):
                with path.open('wb') as out:
                    download(store, 'x', out, **{'retry': Retry(first_delay=0.01), **options})

            for wrong, requests in (('expired', 1), ('newer', 2), ('newer', 1)):
                write(wrong, 'wrong')
                proxy.requests.clear()
                with pytest.raises(AccessDeniedError, match="'shared-credentials-file'"):
                    fetch()
                assert len(proxy.requests) == requests  # one with each of the keys that were there
            other = rgw.store(bucket)
            with pytest.raises(AccessDeniedError):
                other.head('x')
            write(*keys)
            fetch(size=len(data), retry=Retry(attempts=1))
            assert path.read_bytes() == data
            assert other.head('x').size == len(data)
            write('expired', 'wrong')  # the keys that work are kept
            assert store.head('x').size == len(data)

    def test_what_was_renewed_may_have_expired_too(self, moto, monkeypatch):
        store = moto.store(moto.new_bucket())
        put_bytes(store, 'x', b'1')
        monkeypatch.setenv('AWS_CREDENTIAL_EXPIRATION', '2020-01-01T00:00:00Z')
        expired = moto.store(store.bucket)
        with pytest.raises(AccessDeniedError, match='still expired'):
            read_bytes(expired, 'x')
        monkeypatch.delenv('AWS_CREDENTIAL_EXPIRATION')
        assert read_bytes(expired, 'x') == b'1'

    def test_who_may_not_read_is_told_at_once_though_each_time_the_credentials_are_others(
        self, rgw, monkeypatch, tmp_path
    ):
        program, config = tmp_path / 'program.py', tmp_path / 'config'
        program.write_text(
            """
import json, uuid
print(json.dumps({'Version': 1, 'AccessKeyId': uuid.uuid4().hex, 'SecretAccessKey': 'wrong'}))
"""
        )
        config.write_text(f'[profile new]\ncredential_process = "{sys.executable}" "{program}"\n')
        monkeypatch.setenv('AWS_CONFIG_FILE', str(config))
        for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'):
            monkeypatch.delenv(name)
        with FaultProxy(rgw.endpoint_url) as proxy:
            store = rgw.store(rgw.new_bucket(), endpoint_url=proxy.endpoint_url, extra={'profile': 'new'})
            with pytest.raises(AccessDeniedError, match="'custom-process'"):
                read_bytes(store, 'x')
            assert len(proxy.requests) == 1

    @pytest.mark.parametrize(('own', 'attempts'), [(None, 5), ('3', 3)])
    def test_the_metadata_service_may_be_busy(self, s3_environment, monkeypatch, own, attempts):
        if own:
            monkeypatch.setenv('AWS_METADATA_SERVICE_NUM_ATTEMPTS', own)
        session = S3Store('b', '', StoreOptions())._connection.get().session
        assert int(session._session.get_config_variable('metadata_service_num_attempts')) == attempts

    def test_an_anonymous_request_is_unsigned(self, rgw):
        bucket = rgw.new_bucket()
        put_bytes(rgw.store(bucket), 'x', b'1')
        with pytest.raises(AccessDeniedError, match=r'no credentials \(anonymous\)'):
            read_bytes(rgw.store(bucket, anonymous=True), 'x')
        rgw.client().put_object_acl(Bucket=bucket, Key='x', ACL='public-read')
        with FaultProxy(rgw.endpoint_url) as proxy:
            assert read_bytes(rgw.store(bucket, anonymous=True, endpoint_url=proxy.endpoint_url), 'x') == b'1'
            assert 'authorization' not in proxy.requests[0].headers

    def test_nobody_listens(self, s3_environment):
        with pytest.raises(TransferError, match=r'127.0.0.1:9/'):
            read_bytes(open_store('s3://b', StoreOptions(endpoint_url='http://127.0.0.1:9')), 'x')

    def test_an_impossible_endpoint_is_a_configuration_error(self, s3_environment):
        with pytest.raises(ConfigError, match='endpoint'):
            read_bytes(open_store('s3://b', StoreOptions(endpoint_url='not a url')), 'x')

    def test_an_unknown_profile_is_a_configuration_error(self, s3_environment):
        with pytest.raises(ConfigError, match='no-such-profile'):
            read_bytes(open_store('s3://b', StoreOptions(extra={'profile': 'no-such-profile'})), 'x')

    def test_an_impossible_bucket_name_is_a_configuration_error(self, moto):
        with pytest.raises(ConfigError, match='no request that S3 knows'):
            read_bytes(moto.store('no bucket!'), 'x')


class TestRequests:
    def test_requester_pays_is_sent(self, moto):
        bucket = moto.new_bucket()
        with FaultProxy(moto.endpoint_url) as proxy:
            store = moto.store(bucket, requester_pays=True, endpoint_url=proxy.endpoint_url)
            put_bytes(store, 'x', b'1')
            read_bytes(store, 'x')
            store.head('x')
            list(store.list(''))
            store.delete('x')
            assert len(proxy.requests) == 5
            assert all(request.headers['x-amz-request-payer'] == 'requester' for request in proxy.requests)

    def test_no_checksum_trailers_for_a_custom_endpoint(self, moto):
        bucket = moto.new_bucket()
        with FaultProxy(moto.endpoint_url) as proxy:
            put_bytes(moto.store(bucket, endpoint_url=proxy.endpoint_url), 'x', b'1')
            headers = proxy.requests[0].headers
        assert not any('checksum' in name or 'trailer' in name for name in headers)

    @pytest.mark.parametrize('variable', ['S3_ENDPOINT_URL', 'AWS_ENDPOINT_URL_S3', 'AWS_ENDPOINT_URL'])
    def test_the_endpoint_may_come_from_the_environment(self, moto, monkeypatch, variable):
        bucket = moto.new_bucket()
        monkeypatch.setenv(variable, moto.endpoint_url)
        store = open_store(f's3://{bucket}/p')
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'

    def test_our_variable_wins_over_boto3s_and_options_over_both(self, moto, monkeypatch):
        bucket = moto.new_bucket()
        monkeypatch.setenv('AWS_ENDPOINT_URL_S3', 'http://127.0.0.1:9')
        monkeypatch.setenv('S3_ENDPOINT_URL', moto.endpoint_url)
        put_bytes(open_store(f's3://{bucket}'), 'x', b'1')
        monkeypatch.setenv('S3_ENDPOINT_URL', 'http://127.0.0.1:9')
        assert read_bytes(open_store(f's3://{bucket}', StoreOptions(endpoint_url=moto.endpoint_url)), 'x') == b'1'

    def test_listing_goes_beyond_one_page(self, moto):
        store = moto.store(moto.new_bucket(), 'p')
        for i in range(105):  # a page has 50
            put_bytes(store, f'k{i:04d}', b'')
        assert [info.key for info in store.list('')] == [f'k{i:04d}' for i in range(105)]

    @pytest.fixture
    def clients(self, monkeypatch):
        """The regions of the clients that are made."""
        from boto3.session import Session

        made = []
        make = Session.client

        def client(session, service, **settings):
            made.append(settings['region_name'])
            return make(session, service, **settings)

        monkeypatch.setattr(Session, 'client', client)
        return made

    def test_stores_with_the_same_settings_share_a_client(self, moto, monkeypatch, clients):
        bucket = moto.new_bucket()
        clients.clear()
        for prefix, region in (('a', 'eu-north-1'), ('b', 'eu-north-1'), ('c', 'eu-south-1')):
            put_bytes(moto.store(bucket, prefix, region=region), 'x', b'1')
        assert clients == ['eu-north-1', 'eu-south-1']
        monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'another')
        put_bytes(moto.store(bucket, 'd', region='eu-north-1'), 'x', b'1')
        assert clients == ['eu-north-1', 'eu-south-1', 'eu-north-1']

    def test_the_client_is_made_at_the_first_request_and_anew_after_fork(self, moto, clients):
        store = moto.store(moto.new_bucket(), region='ap-south-1')
        clients.clear()
        assert not clients
        put_bytes(store, 'x', b'1')
        assert len(clients) == 1
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if read_bytes(store, 'x') == b'1' and len(clients) == 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert read_bytes(store, 'x') == b'1'
        assert len(clients) == 1


class TestFaults:
    """Real connections, broken on purpose."""

    RETRY = Retry(attempts=3, first_delay=0.01)

    @pytest.fixture(params=['moto', pytest.param('rgw', marks=pytest.mark.slow)])
    def s3_server(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture
    def proxy(self, s3_server):
        with FaultProxy(s3_server.endpoint_url) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, s3_server, bucket, proxy, request):
        stalls = request.node.callspec.params.get('kind') == 'stall_after'
        return s3_server.store(bucket, endpoint_url=proxy.endpoint_url, read_timeout=2.0 if stalls else 30.0)

    def download(self, store, tmp_path, **how):
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            count = download(store, 'x', out, how.pop('retry', self.RETRY), **how)
        assert (tmp_path / 'out').stat().st_size == count
        return (tmp_path / 'out').read_bytes()

    @pytest.mark.parametrize('kind', ['reset_after', 'close_after', 'stall_after'])
    @pytest.mark.parametrize('after', [0, 1, 1_500_000, len(DATA) - 1])
    def test_a_broken_body_is_resumed_where_it_broke(self, store, proxy, tmp_path, kind, after):
        proxy.faults = [Fault(match='GET', times=1, **{kind: after})]
        assert self.download(store, tmp_path) == DATA
        first, second = proxy.requests
        assert 'range' not in first.headers
        if 'range' in second.headers:
            begin = int(second.headers['range'].removeprefix('bytes=').rstrip('-'))
            assert begin <= after
            assert second.headers['if-match'].strip('"')
        if kind != 'reset_after' and after == 1_500_000:  # a reset may discard what has just arrived
            assert begin >= 1 << 20

    def test_it_breaks_again_and_again_but_gets_there(self, store, proxy, tmp_path):
        proxy.faults = [Fault(match='GET', close_after=(1 << 20) + 1, times=3)]
        assert self.download(store, tmp_path, retry=Retry(attempts=2, first_delay=0.01)) == DATA
        assert len(proxy.requests) == 4

    def test_an_object_replaced_in_between_is_read_anew(self, store, proxy, tmp_path, s3_server, bucket):
        new = os.urandom(len(DATA))
        proxy.faults = [Fault(match='GET', close_after=1_500_000, times=1)]

        def replace():
            put_bytes(s3_server.store(bucket), 'x', new)

        assert self.download(store, tmp_path, retry=Retry(attempts=3, sleep=lambda _: replace())) == new

    def test_denied_and_missing_are_not_tried_again(self, store, proxy, tmp_path):
        proxy.faults = [Fault(status=403)]
        with pytest.raises(AccessDeniedError):
            self.download(store, tmp_path)
        assert len(proxy.requests) == 1


def test_a_prefix_hides_what_is_outside(moto):
    bucket = moto.new_bucket()
    put_bytes(moto.store(bucket), 'pre/x', b'1')
    put_bytes(moto.store(bucket), 'prefix', b'2')
    assert [info.key for info in moto.store(bucket, 'pre').list('')] == ['x']
    assert repr(S3Store('b', 'p/')) == "S3Store('s3://b/p')"


def test_bytes_that_do_not_match_their_checksum_are_read_anew(moto, tmp_path, monkeypatch):
    """AWS sends checksums of whole objects, and boto3 compares them after the last byte."""
    from botocore.exceptions import FlexibleChecksumError
    from botocore.response import StreamingBody

    read, damaged = StreamingBody.read, list[bytes]()

    def damage_first(body, amt=None):
        chunk = read(body, amt)
        if len(damaged) > 1:
            return chunk
        damaged.append(chunk)
        if len(damaged) > 1:
            raise FlexibleChecksumError(error_msg='Expected checksum a did not match calculated checksum: b')
        return b'X' + chunk[1:]

    monkeypatch.setattr(StreamingBody, 'read', damage_first)
    store = moto.store(moto.new_bucket())
    put_bytes(store, 'x', b'right')
    with open(tmp_path / 'out', 'w+b', buffering=0) as out:
        download(store, 'x', out, Retry(first_delay=0), size=5)
    assert damaged == [b'right', b'']
    assert (tmp_path / 'out').read_bytes() == b'right'
