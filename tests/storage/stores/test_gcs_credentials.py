"""Credentials of requests to Google Cloud Storage."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError
from headrace.storage import StoreOptions, open_store
from headrace.storage.stores.gcs import GCSStore
from headrace.storage.stores.s3 import S3Store
from headrace.testing.proxy import FaultProxy
from headrace.testing.stores import put_bytes, read_bytes
from tests.support.stores.store_environments import no_google_settings  # noqa: F401

pytestmark = pytest.mark.cloud


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
