"""Google Cloud Storage: objects, and the credentials of requests."""

from __future__ import annotations

import functools
import io
import os
import pickle
from dataclasses import replace

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import StoreOptions, download, open_store
from headrace.storage.stores.gcs import GCSStore
from headrace.storage.stores.s3 import S3Store
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import DATA, OPERATIONS, StoreFaultContract, through_proxy
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.stores.store_environments import no_google_settings  # noqa: F401

pytestmark = pytest.mark.cloud


class TestGCSStore(StoreContract):
    """The emulator alone: no generation comes with an object's bytes."""

    ROW = '`gs://`: gcp-storage-emulator'

    @pytest.fixture
    def store(self, emulator):
        return emulator.store(emulator.new_bucket(), 'some/prefix')

    def test_an_etag_names_a_version(self, store):
        put_bytes(store, 'x', b'one')
        etag = store.head('x').etag
        assert store.get('x', io.BytesIO()) == ''
        assert store.get('x', io.BytesIO(), etag=etag) == etag
        put_bytes(store, 'x', b'another')
        with pytest.raises(TransferError, match='changed'):
            read_bytes(store, 'x', offset=1, etag=etag)


class TestGCSStoreBehindTheGate(StoreContract):
    """With a service account, preconditions and pages, as Google has them."""

    ROW = '`gs://`: gcp-storage-emulator behind a gate of ours'

    @pytest.fixture
    def store(self, gate, account):
        return gate.store(gate.new_bucket(), extra=account)


class TestGCSFaults(StoreFaultContract):
    ROW = '`gs://`: gcp-storage-emulator behind a gate of ours'

    @pytest.fixture
    def direct(self, emulator):
        return emulator.store(emulator.new_bucket(), 'p')

    @pytest.fixture
    def proxied(self, gate, account, direct, read_timeout):
        store = functools.partial(gate.store, direct.bucket, 'p', extra=account)
        with through_proxy(gate.endpoint_url, store, read_timeout=read_timeout) as proxied:
            yield proxied

    SILENCE = 1.0
    # After a 401 google-auth renews the credentials and asks again, twice. All others: see test_it_asks_once.
    REQUESTS = dict.fromkeys(OPERATIONS, 3)

    @pytest.mark.parametrize('operation', OPERATIONS)
    @pytest.mark.parametrize('fault', [Fault(status=503), Fault(drop=True)], ids=['503', 'no connection'])
    def test_it_asks_once(self, proxied, operation, fault):
        proxied.proxy.faults = [fault]
        with pytest.raises(StorageError):
            OPERATIONS[operation](proxied.store)
        assert len(proxied.proxy.requests) == 1

    def test_it_continues_where_it_broke_in_the_same_generation(self, proxied, tmp_path):
        proxied.proxy.faults = [Fault(match='GET', close_after=1_500_000, times=1)]
        assert self._download(proxied.store, tmp_path) == DATA
        first, second = proxied.proxy.requests
        assert 'range' not in first.headers
        assert int(second.headers['range'].removeprefix('bytes=').rstrip('-')) >= 1 << 20
        assert f'ifGenerationMatch={proxied.store.head("x").etag}' in second.path

    def test_an_object_replaced_in_between_is_read_anew(self, proxied, direct, tmp_path):
        new = os.urandom(len(DATA))
        proxied.proxy.faults = [Fault(match='GET', close_after=1_500_000, times=1)]
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(proxied.store, 'x', out, replace(self.RETRY, sleep=lambda _: put_bytes(direct, 'x', new)))
        assert (tmp_path / 'out').read_bytes() == new


class TestHMAC(StoreContract):
    """HMAC keys speak S3's protocol, so a server of S3 may answer."""

    ROW = '`gs://` with HMAC keys: {s3_server}'

    @pytest.fixture(params=['moto', pytest.param('rgw', marks=pytest.mark.slow)])
    def s3_server(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture
    def store(self, s3_server, hmac_keys):
        store = open_store(f'gs://{s3_server.new_bucket()}/p', StoreOptions(endpoint_url=s3_server.endpoint_url))
        assert isinstance(store, S3Store)
        assert store.url.startswith('gs://')
        return store


@pytest.mark.slow
class TestHMACFaults(StoreFaultContract):
    ROW = '`gs://` with HMAC keys: moto'

    @pytest.fixture
    def direct(self, moto, hmac_keys):
        return open_store(f'gs://{moto.new_bucket()}/p', StoreOptions(endpoint_url=moto.endpoint_url))

    @pytest.fixture
    def proxied(self, moto, direct, read_timeout):
        def store(**options):
            return open_store(direct.url, StoreOptions(**options))

        with through_proxy(moto.endpoint_url, store, read_timeout=read_timeout) as proxied:
            yield proxied


class TestErrors:
    def test_a_missing_object_says_that_the_bucket_exists(self, emulator):
        bucket = emulator.new_bucket()
        store = emulator.store(bucket, 'p')
        for call in (store.head, lambda key: read_bytes(store, key)):
            with pytest.raises(ObjectNotFoundError, match=rf"the bucket '{bucket}' exists.* 'p/nothing'"):
                call('nothing')

    def test_a_missing_bucket_is_named(self, emulator):
        store = emulator.store('headrace-no-such-bucket')
        calls = (lambda: store.head('x'), lambda: read_bytes(store, 'x'), lambda: list(store.list('')))
        for call in (*calls, lambda: put_bytes(store, 'x', b'1')):
            with pytest.raises(ObjectNotFoundError, match="the bucket 'headrace-no-such-bucket' does not exist"):
                call()
        store.delete('x')

    def test_a_bucket_that_cannot_be_listed_may_exist(self, emulator):
        bucket = emulator.new_bucket()
        with FaultProxy(emulator.endpoint_url, [Fault(match=r'/o\?', status=403)]) as proxy:
            store = emulator.store(bucket, endpoint_url=proxy.endpoint_url)
            with pytest.raises(ObjectNotFoundError, match='does not say whether the bucket'):
                store.head('x')

    def test_nobody_listens(self, emulator):
        store = emulator.store('b', endpoint_url='http://127.0.0.1:9')
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x')):
            with pytest.raises(TransferError, match=r'127.0.0.1:9'):
                call()

    @pytest.mark.parametrize('endpoint', ['not a url', 'http://'])
    def test_an_impossible_endpoint_is_a_configuration_error(self, emulator, endpoint):
        store = emulator.store('b', endpoint_url=endpoint)
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x')):
            with pytest.raises(ConfigError, match='endpoint'):
                call()

    @pytest.mark.parametrize('proxy', ['myproxy:notaport', 'http://proxy:99999', '://'])
    def test_a_malformed_proxy_is_named(self, emulator, monkeypatch, proxy):
        monkeypatch.setenv('HTTPS_PROXY', proxy)
        store = emulator.store('b', endpoint_url='https://storage.example')
        with pytest.raises(ConfigError, match='HTTPS_PROXY names a proxy for storage.example: correct it'):
            read_bytes(store, 'x')

    @pytest.mark.parametrize('url', ['gs://', 'gs:///p'])
    def test_a_url_without_a_bucket(self, url):
        with pytest.raises(ConfigError, match='names a bucket'):
            open_store(url)

    def test_unknown_extra_options_are_refused(self):
        with pytest.raises(ConfigError, match=r"service_account_file.*got \['profil'\]"):
            open_store('gs://b', StoreOptions(extra={'profil': 'x'}))


class TestRequests:
    def test_requester_pays_is_sent(self, emulator, monkeypatch):
        bucket = emulator.new_bucket()
        with FaultProxy(emulator.endpoint_url) as proxy:
            options = {'requester_pays': True, 'endpoint_url': proxy.endpoint_url}
            with pytest.raises(ConfigError, match='GOOGLE_CLOUD_PROJECT'):
                emulator.store(bucket, **options).head('x')
            monkeypatch.setenv('GOOGLE_CLOUD_PROJECT', 'another')
            store = emulator.store(bucket, extra={'project': 'payer'}, **options)
            put_bytes(store, 'x', b'1')
            read_bytes(store, 'x')
            store.head('x')
            list(store.list(''))
            store.delete('x')
            assert len(proxy.requests) == 5
            assert all('userProject=payer' in request.path for request in proxy.requests)
            proxy.requests.clear()
            list(emulator.store(bucket, **options).list(''))
            assert 'userProject=another' in proxy.requests[0].path

    def test_the_server_may_come_from_the_environment(self, emulator, monkeypatch):
        bucket = emulator.new_bucket()
        for value in (emulator.endpoint_url, emulator.endpoint_url.removeprefix('http://')):
            monkeypatch.setenv('STORAGE_EMULATOR_HOST', value)
            store = open_store(f'gs://{bucket}/p')
            put_bytes(store, 'x', b'1')
            assert read_bytes(store, 'x') == b'1'

    def test_options_win_over_the_environment(self, gate, account, monkeypatch):
        monkeypatch.setenv('STORAGE_EMULATOR_HOST', 'http://127.0.0.1:9')
        monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', account['service_account_file'])
        store = gate.store(gate.new_bucket())
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'

    def test_listing_goes_beyond_one_page(self, gate, account, monkeypatch):
        store = gate.store(gate.new_bucket(), 'p', extra=account)
        for i in range(7):
            put_bytes(store, f'k{i}', b'')
        monkeypatch.setattr(gate, 'page_size', 3)
        assert [info.key for info in store.list('')] == [f'k{i}' for i in range(7)]

    def test_a_large_object_goes_up_in_parts(self, gate, account, monkeypatch):
        monkeypatch.setattr('headrace.storage.stores.gcs.UPLOAD_PART', 4 << 20)
        data = os.urandom((9 << 20) + 1)
        bucket = gate.new_bucket()
        with FaultProxy(gate.endpoint_url) as proxy:
            store = gate.store(bucket, extra=account, endpoint_url=proxy.endpoint_url)
            put_bytes(store, 'x', data)
            assert [request.method for request in proxy.requests] == ['POST', 'PUT', 'PUT', 'PUT']
        assert read_bytes(gate.store(bucket, extra=account), 'x') == data

    def test_the_client_is_made_at_the_first_request(self, emulator):
        store = emulator.store(emulator.new_bucket())
        assert not store._connection.is_made
        put_bytes(store, 'x', b'1')
        assert store._connection.is_made


def test_a_prefix_hides_what_is_outside(emulator):
    bucket = emulator.new_bucket()
    put_bytes(emulator.store(bucket), 'pre/x', b'1')
    put_bytes(emulator.store(bucket), 'prefix', b'2')
    assert [info.key for info in emulator.store(bucket, 'pre').list('')] == ['x']
    assert repr(GCSStore('b', 'p/')) == "GCSStore('gs://b/p')"


class TestWhichCredentials:
    def test_hmac_keys_come_first(self, hmac_keys):
        assert isinstance(open_store('gs://b/p'), S3Store)
        assert isinstance(open_store('gs://b/p', StoreOptions(anonymous=True)), GCSStore)
        assert isinstance(open_store('gs://b/p', StoreOptions(extra={'service_account_file': 'x'})), GCSStore)

    @pytest.mark.parametrize('variable', ['GCS_KEY', 'GCS_SECRET'])
    def test_half_of_the_hmac_keys_is_none(self, hmac_keys, monkeypatch, variable):
        monkeypatch.delenv(variable)
        assert isinstance(open_store('gs://b/p'), GCSStore)

    def test_hmac_keys_go_to_google(self, hmac_keys, monkeypatch):
        monkeypatch.setenv('S3_ENDPOINT_URL', 'http://127.0.0.1:9')
        client = open_store('gs://b/p')._client
        assert client.meta.endpoint_url == 'https://storage.googleapis.com'
        assert client.meta.region_name == 'auto'

    @pytest.mark.parametrize('variable', ['GCS_KEY', 'GCS_SECRET'])
    def test_wrong_hmac_keys_are_named_by_their_variables(self, rgw, hmac_keys, monkeypatch, variable):
        bucket = rgw.new_bucket()
        monkeypatch.setenv(variable, 'wrong')
        store = open_store(f'gs://{bucket}', StoreOptions(endpoint_url=rgw.endpoint_url))
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: put_bytes(store, 'x', b'')):
            with pytest.raises(AccessDeniedError, match=r'the keys in GCS_KEY and GCS_SECRET') as caught:
                call()
            assert 'testsecret' not in str(caught.value)

    def test_hmac_keys_are_not_pickled(self, hmac_keys, monkeypatch):
        pickled = pickle.dumps(open_store('gs://b/p'))
        assert b'testkey' not in pickled
        assert b'testsecret' not in pickled
        monkeypatch.delenv('GCS_SECRET')
        with pytest.raises(AccessDeniedError, match='GCS_KEY and GCS_SECRET; they are not both set'):
            pickle.loads(pickled).head('x')

    def test_with_hmac_keys_nobody_else_pays(self, hmac_keys):
        with pytest.raises(ConfigError, match='Unset them'):
            open_store('gs://b', StoreOptions(requester_pays=True))

    def test_a_missing_bucket_of_hmac_keys_is_not_blamed_on_the_variables_of_s3(self, s3_server, hmac_keys):
        store = open_store('gs://headrace-no-such-bucket', StoreOptions(endpoint_url=s3_server.endpoint_url))
        with pytest.raises(ObjectNotFoundError, match=r'does not exist at .* the endpoint \(options\)'):
            store.head('x')

    def test_a_store_that_is_opened_after_its_hmac_keys_have_changed_uses_the_new_ones(
        self, s3_server, hmac_keys, monkeypatch
    ):
        options = StoreOptions(endpoint_url=s3_server.endpoint_url)
        monkeypatch.setenv('GCS_SECRET', 'wrong')
        wrong = open_store('gs://headrace-no-such-bucket', options)
        with pytest.raises(StorageError):  # moto, which checks no key, says that there is no bucket
            wrong.head('x')
        monkeypatch.setenv('GCS_SECRET', 'testsecret')
        with pytest.raises(ObjectNotFoundError):
            open_store('gs://headrace-no-such-bucket', options).head('x')

    def test_application_default_credentials(self, gate, account, monkeypatch):
        monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', account['service_account_file'])
        store = gate.store(gate.new_bucket())
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'

    def test_expired_credentials_are_renewed(self, gate, account):
        store = gate.store(gate.new_bucket(), extra=account)
        put_bytes(store, 'x', b'1')
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: list(store.list(''))):
            before = gate.issued
            gate.tokens.clear()
            call()
            assert gate.issued == before + 1

    @pytest.mark.parametrize('source', ['GOOGLE_APPLICATION_CREDENTIALS', 'service_account_file'])
    def test_wrong_credentials_name_their_source(self, gate, account, monkeypatch, tmp_path, source):
        path = account['service_account_file']
        extra = {}
        if source == 'service_account_file':
            extra = account
        else:
            monkeypatch.setenv(source, path)
        monkeypatch.setattr(gate, 'public_key', gate.public_key)
        gate.write_service_account(tmp_path / 'another.json')
        store = gate.store(gate.new_bucket(), extra=extra)
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: put_bytes(store, 'x', b'')):
            with pytest.raises(AccessDeniedError) as caught:
                call()
            for part in (source, path, 'reader@test-project', gate.endpoint_url):
                assert part in str(caught.value)
            assert 'PRIVATE' not in str(caught.value)

    def test_no_credentials_at_all(self, gate):
        with pytest.raises(AccessDeniedError, match=r'gs://b needs credentials.*GOOGLE_APPLICATION_CREDENTIALS'):
            read_bytes(gate.store('b'), 'x')

    def test_a_file_that_is_no_key(self, gate, tmp_path):
        (tmp_path / 'key.json').write_text('{}')
        for path in (tmp_path / 'nothing', tmp_path / 'key.json'):
            with pytest.raises(ConfigError, match=rf'service_account_file.*{path}'):
                gate.store('b', extra={'service_account_file': str(path)}).head('x')

    def test_an_anonymous_request_is_unsigned(self, emulator, hmac_keys):
        bucket = emulator.new_bucket()
        with FaultProxy(emulator.endpoint_url) as proxy:
            store = open_store(f'gs://{bucket}', StoreOptions(anonymous=True, endpoint_url=proxy.endpoint_url))
            put_bytes(store, 'x', b'1')
            assert read_bytes(store, 'x') == b'1'
            assert not any('authorization' in request.headers for request in proxy.requests)

    def test_an_anonymous_request_may_be_refused(self, gate):
        store = gate.store(gate.new_bucket(), anonymous=True)
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: put_bytes(store, 'x', b'')):
            with pytest.raises(AccessDeniedError, match=r'no credentials \(anonymous\)'):
                call()
