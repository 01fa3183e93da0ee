"""Azure Storage: objects, and the account, server and credentials of requests."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import ipaddress
import os
import sys
import time
import traceback
from types import SimpleNamespace

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import StoreOptions, open_store
from headrace.storage.stores.azure import AzureStore
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import StoreFaultContract, through_proxy
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.servers.azure import INSTALL_AZURITE, azurite_server, find_azurite
from tests.support.stores.store_environments import azure_environment  # noqa: F401
from tests.support.stores.verbs import everything

pytestmark = pytest.mark.cloud


@pytest.mark.usefixtures('with_key')
class TestAzureStore(StoreContract):
    ROW = '`{store}://`: Azurite'

    @pytest.fixture(params=['azure', 'azure-dl'])
    def store(self, request, azurite):
        return azurite.store(azurite.new_container(), 'some/prefix', scheme=request.param)


@pytest.mark.usefixtures('with_key')
class TestAzureStoreWithoutPrefix(StoreContract):
    ROW = '`azure://`: Azurite'

    @pytest.fixture
    def store(self, azurite):
        return azurite.store(azurite.new_container())


class TestAzureFaults(StoreFaultContract):
    ROW = '`{scheme}://`: Azurite'

    @pytest.fixture(params=['azure', pytest.param('azure-dl', marks=pytest.mark.slow)])
    def scheme(self, request):
        return request.param

    @pytest.fixture
    def direct(self, azurite, with_key):
        return azurite.store(azurite.new_container(), 'p')

    @pytest.fixture
    def proxied(self, azurite, scheme, direct, read_timeout):
        def store(*, endpoint_url, **options):
            url = f'{endpoint_url}/{azurite.account}'
            return azurite.store(direct.container, 'p', scheme=scheme, endpoint_url=url, **options)

        with through_proxy(azurite.root_url, store, read_timeout=read_timeout) as proxied:
            yield proxied


class TestUrls:
    @pytest.mark.parametrize(
        ('url', 'container', 'prefix', 'host'),
        [
            ('azure://data', 'data', '', ''),
            ('azure://data/a/b/', 'data', 'a/b', ''),
            ('azure-dl://data/a', 'data', 'a', ''),
            ('azure://acc.blob.core.windows.net/data/a', 'data', 'a', 'acc.blob.core.windows.net'),
            ('azure-dl://acc.dfs.core.windows.net/data', 'data', '', 'acc.dfs.core.windows.net'),
            ('azure://$web/site', '$web', 'site', ''),
        ],
    )
    def test_forms(self, url, container, prefix, host):
        store = open_store(url)
        assert isinstance(store, AzureStore)
        assert (store.container, store.prefix, store.host) == (container, prefix, host)
        assert store.url == url.rstrip('/')

    @pytest.mark.parametrize(
        'url',
        [
            'azure://',
            'azure:///x',
            'azure://ab',
            'azure://Data',
            'azure://a--b',
            'azure://a_b/x',
            'azure://acc.blob.core.windows.net',
            'azure-dl://fs@acc.dfs.core.windows.net/x',
            'azure://' + 'a' * 64,
        ],
    )
    def test_bad_forms_are_refused(self, url):
        with pytest.raises(ConfigError, match='3 to 63 lower-case letters') as caught:
            open_store(url)
        assert url in str(caught.value)

    @pytest.mark.parametrize(
        ('url', 'server'),
        [
            ('azure://data', 'https://devstoreaccount1.blob.core.windows.net'),
            ('azure://acc.blob.core.chinacloudapi.cn/data', 'https://acc.blob.core.chinacloudapi.cn'),
            ('azure-dl://acc.dfs.core.windows.net/data', 'https://acc.blob.core.windows.net'),
        ],
    )
    def test_the_server_is_the_blob_endpoint(self, url, server):
        assert open_store(url)._server() == server

    def test_an_unknown_account_is_a_configuration_error(self, monkeypatch):
        monkeypatch.delenv('AZURE_ACCOUNT_NAME')
        with pytest.raises(ConfigError, match=r'AZURE_ACCOUNT_NAME.*azure://account.blob.core.windows.net/data/x'):
            read_bytes(open_store('azure://data/x'), 'k')

    def test_unknown_extra_options_are_refused(self):
        with pytest.raises(ConfigError, match=r"\['acount'\]"):
            open_store('azure://data', StoreOptions(extra={'acount': 'x'}))

    def test_without_azure_identity_the_extra_to_install_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, 'azure.identity', None)
        with pytest.raises(ImportError, match=r'headrace\[azure\].*AZURE_ACCOUNT_ACCESS_KEY'):
            read_bytes(open_store('azure://data'), 'x')


@pytest.mark.usefixtures('with_key')
class TestErrors:
    def test_a_wrong_key_names_its_source_and_the_server(self, azurite, container, monkeypatch):
        wrong = base64.b64encode(b'wrong' * 8).decode()
        monkeypatch.setenv('AZURE_ACCOUNT_ACCESS_KEY', wrong)
        for call in everything(azurite.store(container)):
            with pytest.raises(AccessDeniedError, match='credentials from AZURE_ACCOUNT_ACCESS_KEY') as caught:
                call()
            assert azurite.endpoint_url in str(caught.value)
            assert wrong not in str(caught.value)

    def test_a_key_that_is_none(self, azurite, container, monkeypatch):
        monkeypatch.setenv('AZURE_ACCOUNT_ACCESS_KEY', 'not base64')
        with pytest.raises((AccessDeniedError, ConfigError), match='AZURE_ACCOUNT_ACCESS_KEY') as caught:
            read_bytes(azurite.store(container), 'x')
        assert 'not base64' not in str(caught.value)

    def test_a_missing_blob_says_that_the_container_exists(self, azurite, container):
        store = azurite.store(container, 'p')
        for call in (store.head, lambda key: read_bytes(store, key)):
            with pytest.raises(
                ObjectNotFoundError, match=rf"the container '{container}' exists at .* not the blob 'p/nothing'"
            ):
                call('nothing')

    def test_a_missing_container_is_named(self, azurite):
        for call in everything(azurite.store('no-such-container')):
            with pytest.raises(ObjectNotFoundError, match="the container 'no-such-container' does not exist"):
                call()

    def test_a_404_that_says_nothing_is_asked_about(self, azurite, container):
        with FaultProxy(azurite.root_url) as proxy:
            options = {'endpoint_url': f'{proxy.endpoint_url}/{azurite.account}'}
            for name, expected in ((container, 'exists at'), ('no-such-container', 'does not exist')):
                proxy.faults = [Fault(status=404, times=1)]
                with pytest.raises(ObjectNotFoundError, match=expected):
                    azurite.store(name, **options).head('x')

    def test_an_unknown_name_of_a_host_is_a_broken_transfer(self):
        store = open_store('azure://acc.blob.invalid/data', StoreOptions(connect_timeout=2.0, anonymous=True))
        with pytest.raises(TransferError, match=r'acc\.blob\.invalid'):
            read_bytes(store, 'x')

    def test_a_body_that_breaks_off_goes_on_from_its_version(self):
        from azure.core.exceptions import IncompleteReadError

        store = open_store('azure://acc.blob.invalid/data', StoreOptions(anonymous=True))
        with pytest.raises(BrokenTransferError) as raised, store._mapped_errors('Reading', 'x', etag='v1'):
            raise IncompleteReadError('half of it')
        assert raised.value.etag == 'v1'

    @pytest.mark.parametrize(('offset', 'size'), [(2, None), (2, 1), (1, 1)])
    def test_a_range_that_begins_beyond_the_end_is_an_error(self, azurite, container, offset, size):
        with pytest.raises(ConfigError, match='range lies inside'):
            read_bytes(azurite.store(container), 'x', offset=offset, size=size)

    def test_another_version_is_told_also_where_nothing_is_left(self, azurite, container):
        with pytest.raises(TransferError, match='changed'):
            read_bytes(azurite.store(container), 'x', offset=1, etag='0x123')

    def test_an_error_of_the_file_that_is_written_is_not_the_stores(self, azurite, container):
        class Full:
            def write(self, data):
                raise ConnectionResetError('of the file')

        with pytest.raises(ConnectionResetError, match='of the file') as caught:
            azurite.store(container).get('x', Full())
        assert not isinstance(caught.value, StorageError)


@pytest.mark.usefixtures('with_key')
class TestRequests:
    def test_a_download_is_one_request_and_one_version(self, azurite):
        data = os.urandom((70 << 20) + 7)  # more than the SDK's own downloader takes at once
        name = azurite.new_container()
        put_bytes(azurite.store(name), 'x', data)
        with FaultProxy(azurite.root_url) as proxy:
            store = azurite.store(name, endpoint_url=f'{proxy.endpoint_url}/{azurite.account}')
            assert read_bytes(store, 'x', etag=store.head('x').etag) == data
            assert [request.method for request in proxy.requests] == ['HEAD', 'GET']
            assert proxy.requests[1].headers['if-match']

    def test_a_large_upload_shows_at_its_end(self, azurite):
        name = azurite.new_container()
        store = azurite.store(name)
        put_bytes(store, 'x', b'old')

        class Source:
            """Looks at the object each time that a part of the new one is read."""

            def __init__(self):
                self.left, self.seen = 80 << 20, set()

            def tell(self):
                return 0

            def read(self, size):
                self.seen.add(store.head('x').size)
                count = min(size, self.left)
                self.left -= count
                return bytes(count)

        source = Source()
        store.put('x', source, size=80 << 20)
        assert source.seen == {3}
        assert store.head('x').size == 80 << 20

    def test_compressed_bytes_are_not_unpacked(self, azurite, container):
        from azure.storage.blob import ContentSettings

        data = gzip.compress(b'text' * 1000)
        blob = azurite.client().get_blob_client(container, 'zipped')
        blob.upload_blob(data, content_settings=ContentSettings(content_encoding='gzip'))
        assert read_bytes(azurite.store(container), 'zipped') == data

    def test_listing_goes_beyond_one_page(self, azurite, monkeypatch):
        from azure.storage.blob import ContainerClient

        name = azurite.new_container()
        store = azurite.store(name, 'p')
        for i in range(25):
            put_bytes(store, f'k{i:04d}', b'')
        whole = ContainerClient.list_blobs
        monkeypatch.setattr(
            ContainerClient, 'list_blobs', lambda *args, **how: whole(*args, **how, results_per_page=10)
        )
        with FaultProxy(azurite.root_url) as proxy:
            store = azurite.store(name, 'p', endpoint_url=f'{proxy.endpoint_url}/{azurite.account}')
            assert [info.key for info in store.list('')] == [f'k{i:04d}' for i in range(25)]
            assert len(proxy.requests) == 3
            proxy.faults = [Fault(skip=1, status=503)]
            with pytest.raises(TransferError):
                list(store.list(''))

    def test_a_blob_with_snapshots_is_deleted(self, azurite, container):
        azurite.client().get_blob_client(container, 'x').create_snapshot()
        store = azurite.store(container)
        store.delete('x')
        assert list(store.list('')) == []

    def test_a_prefix_hides_what_is_outside(self, azurite):
        name = azurite.new_container()
        put_bytes(azurite.store(name), 'pre/x', b'1')
        put_bytes(azurite.store(name), 'prefix', b'2')
        assert [info.key for info in azurite.store(name, 'pre').list('')] == ['x']
        assert repr(AzureStore('data', 'p/')) == "AzureStore('azure://data/p')"


@pytest.mark.usefixtures('with_key')
class TestHierarchicalNamespace:
    """What the Blob endpoint of a Data Lake account answers, made by hand: Azurite has no such accounts."""

    @pytest.fixture
    def store(self, azurite):
        name = azurite.new_container()
        client = azurite.client().get_container_client(name)
        client.upload_blob('data', b'', metadata={'hdi_isfolder': 'true'})
        client.upload_blob('data/empty', b'')
        client.upload_blob('data/x', b'1')
        return azurite.store(name, scheme='azure-dl')

    def test_folders_are_not_listed(self, store):
        assert [info.key for info in store.list('')] == ['data/empty', 'data/x']

    def test_a_folder_is_no_object(self, store):
        for call in (store.head, lambda key: read_bytes(store, key), lambda key: read_bytes(store, key, offset=0)):
            with pytest.raises(ObjectNotFoundError, match=r'data: it is a folder'):
                call('data')

    def test_the_order_of_the_tree_becomes_that_of_the_names(self, monkeypatch):
        # as https://github.com/Azure/azure-sdk-for-go/issues/24210 shows it
        tree = ['A', 'A/dat1', 'A-B', 'A-B/dat2', 'A.C', 'AB', 'AB/AB', 'AB.txt']
        blobs = [SimpleNamespace(name=name, size=1, etag='"e"', metadata=None) for name in tree]

        class Pages:
            def by_page(self):
                return iter([iter(blobs[:5]), iter(blobs[5:])])

        monkeypatch.setattr('azure.storage.blob.ContainerClient.list_blobs', lambda *args, **how: Pages())
        store = open_store('azure-dl://data', StoreOptions(anonymous=True))
        assert [info.key for info in store.list('')] == sorted(tree)


def sas(azurite, *, valid=3600, permission='rl'):
    from azure.storage.blob import ResourceTypes, generate_account_sas

    now = dt.datetime.now(dt.timezone.utc)
    kinds = ResourceTypes(container=True, object=True)
    expiry = now + dt.timedelta(seconds=valid)
    return generate_account_sas(
        azurite.account, azurite.key, kinds, permission, expiry, start=now - dt.timedelta(hours=2)
    )


class TestAccount:
    """Which account and which credentials; see `azure`."""

    @pytest.mark.parametrize('variable', ['AZURE_ACCOUNT_ACCESS_KEY', 'AZURE_STORAGE_KEY'])
    @pytest.mark.parametrize('name', ['AZURE_ACCOUNT_NAME', 'AZURE_STORAGE_ACCOUNT', 'AZURE_STORAGE_ACCOUNT_NAME'])
    def test_keys(self, azurite, container, monkeypatch, variable, name):
        monkeypatch.delenv('AZURE_ACCOUNT_NAME')
        monkeypatch.setenv(name, azurite.account)
        monkeypatch.setenv(variable, azurite.key)
        assert read_bytes(azurite.store(container), 'x') == b'1'

    def test_the_environment_may_say_all(self, azurite, container, monkeypatch):
        for name, value in azurite.environment().items():
            monkeypatch.setenv(name, value)
        assert read_bytes(open_store(f'azure://{container}'), 'x') == b'1'

    def test_the_account_may_come_from_the_endpoint_and_from_extra(self, azurite, container, monkeypatch):
        monkeypatch.setenv('AZURE_ACCOUNT_ACCESS_KEY', azurite.key)
        monkeypatch.delenv('AZURE_ACCOUNT_NAME')
        assert read_bytes(azurite.store(container), 'x') == b'1'
        assert read_bytes(azurite.store(container, extra={'account_name': azurite.account}), 'x') == b'1'

    @pytest.mark.parametrize('others', [{}, {'AZURE_ACCOUNT_ACCESS_KEY': '$KEY'}, {'AZURE_ACCOUNT_NAME': '$ACCOUNT'}])
    def test_a_connection_string(self, azurite, container, monkeypatch, others):
        monkeypatch.delenv('AZURE_ACCOUNT_NAME')
        for name, value in others.items():
            monkeypatch.setenv(name, {'$KEY': azurite.key, '$ACCOUNT': azurite.account}[value])
        if 'AZURE_ACCOUNT_ACCESS_KEY' in others:
            # which has the account's name, but no endpoint for another credential
            monkeypatch.setenv('AZURE_STORAGE_SERVICE_ENDPOINT', azurite.endpoint_url)
        monkeypatch.setenv('AZURE_STORAGE_CONNECTION_STRING', azurite.connection_string)
        assert read_bytes(open_store(f'azure://{container}'), 'x') == b'1'

    def test_an_endpoint_wins_over_that_of_a_connection_string(self, azurite, container, monkeypatch):
        text = azurite.connection_string.replace('127.0.0.1', '127.0.0.2')
        monkeypatch.setenv('AZURE_STORAGE_CONNECTION_STRING', text)
        assert read_bytes(azurite.store(container), 'x') == b'1'

    def test_a_broken_connection_string_is_a_configuration_error_without_its_secret(self, monkeypatch):
        monkeypatch.setenv('AZURE_STORAGE_CONNECTION_STRING', 'AccountName=devstoreaccount1;AccountKey')
        with pytest.raises(ConfigError, match='AZURE_STORAGE_CONNECTION_STRING'):
            read_bytes(open_store('azure://data'), 'x')

    def test_secrets_of_another_account_are_passed_over(self, azurite, container, monkeypatch):
        """An account of a mixture must not be asked with another's key."""
        monkeypatch.setenv('AZURE_ACCOUNT_ACCESS_KEY', azurite.key)
        monkeypatch.setenv('AZURE_STORAGE_SAS_TOKEN', sas(azurite))
        monkeypatch.setenv('AZURE_STORAGE_CONNECTION_STRING', azurite.connection_string)
        other = open_store('azure://other.blob.core.windows.net/data')
        assert other._connection.get()[0].source == 'DefaultAzureCredential'
        assert azurite.store(container)._connection.get()[0].source == 'AZURE_ACCOUNT_ACCESS_KEY'

    @pytest.mark.parametrize('mark', ['', '?'])
    def test_a_sas_token(self, azurite, container, monkeypatch, mark):
        monkeypatch.setenv('AZURE_STORAGE_SAS_TOKEN', mark + sas(azurite))
        store = azurite.store(container)
        assert read_bytes(store, 'x') == b'1'
        assert store.head('x').size == 1
        with pytest.raises(AccessDeniedError, match='AZURE_STORAGE_SAS_TOKEN'):
            put_bytes(store, 'y', b'1')

    def test_no_signature_is_told(self, azurite, container, monkeypatch):
        token = sas(azurite, valid=-3600)
        monkeypatch.setenv('AZURE_STORAGE_SAS_TOKEN', token)
        signature = token.partition('sig=')[2].partition('&')[0]
        with FaultProxy(azurite.root_url) as proxy:
            store = azurite.store(container, endpoint_url=f'{proxy.endpoint_url}/{azurite.account}')
            for fault, expected in ((Fault(), AccessDeniedError), (Fault(drop=True), TransferError)):
                proxy.faults = [fault]
                for call in everything(store):
                    with pytest.raises(expected) as caught:
                        call()
                    assert signature not in ''.join(traceback.format_exception(caught.value))
            assert signature in proxy.requests[0].path
        nobody = azurite.store(container, endpoint_url=f'http://127.0.0.1:9/{azurite.account}')
        with pytest.raises(TransferError, match=r'127\.0\.0\.1:9') as caught:
            read_bytes(nobody, 'x')
        assert signature not in ''.join(traceback.format_exception(caught.value))

    def test_anonymous_requests_are_unsigned(self, azurite, container, with_key):
        store = azurite.store(container, anonymous=True)
        with pytest.raises((AccessDeniedError, ObjectNotFoundError), match=r'anonymous|public'):
            read_bytes(store, 'x')
        public = azurite.new_container(public_access='container')
        put_bytes(azurite.store(public), 'x', b'1')
        with FaultProxy(azurite.root_url) as proxy:
            options = {'endpoint_url': f'{proxy.endpoint_url}/{azurite.account}', 'anonymous': True}
            store = azurite.store(public, **options)
            assert read_bytes(store, 'x') == b'1'
            assert [info.key for info in store.list('')] == ['x']
            assert 'authorization' not in proxy.requests[0].headers

    def test_no_credentials_at_all(self, monkeypatch):
        # of the chain's members, those that look no further than this machine's environment
        monkeypatch.setenv('AZURE_TOKEN_CREDENTIALS', 'EnvironmentCredential')
        for call in everything(open_store('azure://data')):
            with pytest.raises(
                AccessDeniedError, match=r'(?s)needs credentials.*from DefaultAzureCredential.*Set one of AZURE_ACCOUNT'
            ):
                call()

    def test_tokens_are_not_sent_in_the_clear(self, azurite, container):
        with pytest.raises(ConfigError, match=r'(?i)https.*DefaultAzureCredential'):
            read_bytes(azurite.store(container), 'x')


@pytest.fixture(scope='session')
def certificate(tmp_path_factory):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp('tls')
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, '127.0.0.1')])
    now = dt.datetime.now(dt.timezone.utc)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address('127.0.0.1'))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / 'certificate').write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / 'key').write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / 'certificate', folder / 'key'


@pytest.fixture(scope='session')
def azurite_with_tls(certificate):
    if find_azurite() is None:
        pytest.skip(f'needs node and: {INSTALL_AZURITE}')
    with azurite_server(certificate=certificate[0], key=certificate[1]) as server:
        yield server


class TestDefaultAzureCredential:
    """Over TLS, with tokens from what passes for the Azure CLI."""

    SECONDS = 2
    """Until a token expires, as the client is told; the server takes it for longer."""

    @pytest.fixture
    def logins(self, tmp_path, monkeypatch, certificate):
        """The file that counts how often the CLI was asked."""
        monkeypatch.setenv('REQUESTS_CA_BUNDLE', str(certificate[0]))
        monkeypatch.setenv('AZURE_TOKEN_CREDENTIALS', 'AzureCliCredential')
        program = tmp_path / 'az'
        program.write_text(
            f'#!/bin/sh\n"exec" "{sys.executable}" "$0"\n'  # for the kernel, a path ends at its first space
            'import base64, json, sys, time\n'
            f'open({str(tmp_path / "log")!r}, "a").write("login\\n")\n'
            'now = int(time.time())\n'
            f'claims = dict(aud="https://storage.azure.com", iss="https://sts.windows.net/t/", iat=now, nbf=now, '
            'exp=now + 600)\n'
            'part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")\n'
            'token = ".".join((part({"alg": "none", "typ": "JWT"}), part(claims), "x"))\n'
            f'print(json.dumps(dict(accessToken=token, expires_on=now + {self.SECONDS}, tokenType="Bearer")))\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv('PATH', f'{tmp_path}{os.pathsep}{os.environ["PATH"]}')
        return tmp_path / 'log'

    def test_an_expired_token_is_replaced(self, azurite_with_tls, logins):
        name = azurite_with_tls.new_container()
        azurite_with_tls.client().get_blob_client(name, 'x').upload_blob(b'1')
        store = azurite_with_tls.store(name)
        assert read_bytes(store, 'x') == b'1'
        asked = logins.read_text().count('login')
        time.sleep(self.SECONDS + 1)
        assert read_bytes(store, 'x') == b'1'
        assert logins.read_text().count('login') > asked

    def test_a_refusal_names_the_member_of_the_chain(self, azurite_with_tls, logins):
        # A token that the server does not take.
        program = logins.parent / 'az'
        program.write_text(program.read_text().replace('https://sts.windows.net/t/', 'https://elsewhere/'))
        with pytest.raises(AccessDeniedError, match=r'DefaultAzureCredential \(AzureCliCredential\).*Blob Data Reader'):
            read_bytes(azurite_with_tls.store('data'), 'x')
