"""The account, server and credentials of Azure Storage."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import sys
import time
import traceback

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage import open_store
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.stores import put_bytes, read_bytes
from tests.support.servers.azure import INSTALL_AZURITE, azurite_server, find_azurite
from tests.support.stores.store_environments import azure_environment  # noqa: F401
from tests.support.stores.verbs import everything

pytestmark = pytest.mark.cloud


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
