"""Credentials of Oracle's cloud: profiles of its command line, and principals."""

from __future__ import annotations

import os
import pickle
import secrets
import time

import pytest

from headrace.errors import AccessDeniedError, ConfigError
from headrace.storage.stores.further import oci
from headrace.testing.stores import read_bytes
from tests.support.servers.oci import TENANCY, USER
from tests.support.stores.store_environments import oci_environment  # noqa: F401
from tests.support.stores.verbs import everything

pytestmark = pytest.mark.cloud


def refusal(cloud, store):
    """What a read says while the server knows no key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloud, 'keys', {})
        with pytest.raises(AccessDeniedError) as refused:
            read_bytes(store, 'x')
    return str(refused.value)


class TestProfiles:
    @pytest.mark.parametrize('variable', ['OCI_CLI_CONFIG_FILE', 'OCI_CONFIG_FILE', 'extra'])
    def test_the_file_may_be_named(self, oci_cloud, bucket, monkeypatch, tmp_path, variable):
        file = str(oci_cloud.write_profile(tmp_path))
        monkeypatch.delenv('OCI_CONFIG_FILE')
        extra = {'config_file': file} if variable == 'extra' else {}
        if not extra:
            monkeypatch.setenv(variable, file)
        store = oci_cloud.store(bucket, extra=extra)
        assert read_bytes(store, 'x') == b'1'
        assert file in refusal(oci_cloud, store)

    def test_the_file_may_be_at_home(self, oci_cloud, bucket, monkeypatch, tmp_path):
        monkeypatch.delenv('OCI_CONFIG_FILE')
        monkeypatch.setenv('HOME', str(tmp_path))
        (tmp_path / '.oci').mkdir()
        oci_cloud.write_profile(tmp_path).rename(tmp_path / '.oci' / 'config')
        assert read_bytes(oci_cloud.store(bucket), 'x') == b'1'

    @pytest.mark.parametrize('by_variable', [True, False])
    def test_a_profile_may_be_named(self, oci_cloud, bucket, monkeypatch, tmp_path, by_variable):
        file = str(oci_cloud.write_profile(tmp_path, 'training'))
        extra = {'config_file': file}
        if by_variable:
            monkeypatch.setenv('OCI_CLI_PROFILE', 'training')
        else:
            extra['profile'] = 'training'
        assert read_bytes(oci_cloud.store(bucket, extra=extra), 'x') == b'1'

    def test_variables_of_the_command_line_are_enough(self, oci_cloud, bucket, monkeypatch, tmp_path):
        key, fingerprint = oci_cloud.new_key(tmp_path, passphrase='secret words')
        monkeypatch.delenv('OCI_CONFIG_FILE')
        monkeypatch.setenv('HOME', str(tmp_path))
        names = {'USER': USER, 'TENANCY': TENANCY, 'FINGERPRINT': fingerprint, 'KEY_FILE': str(key)}
        for name, value in {**names, 'PASSPHRASE': 'secret words', 'REGION': 'us-ashburn-1'}.items():
            monkeypatch.setenv(f'OCI_CLI_{name}', value)
        store = oci_cloud.store(bucket)
        assert read_bytes(store, 'x') == b'1'
        assert 'OCI_CLI_USER' in refusal(oci_cloud, store)
        assert 'secret' not in refusal(oci_cloud, store)

    @pytest.mark.parametrize(
        ('entries', 'extra', 'message'),
        [
            ({}, {'profile': 'other'}, "profile 'other' of .*Correct the file"),
            ({}, {'config_file': '/nonexistent'}, '/nonexistent'),
            ({'key_file': '/nonexistent.pem'}, {}, r'/nonexistent\.pem'),
            ({'user': ''}, {}, "'user': 'malformed'"),
            ({'key_file': '/dev/null'}, {}, r'/dev/null|not a private key'),
            ({}, {'auth': 'security_token'}, 'oci session authenticate'),
            ({}, {'auth': 'password'}, "api_key.*got 'password'"),
        ],
    )
    def test_what_is_wrong_with_a_profile_is_told(self, oci_cloud, bucket, tmp_path, entries, extra, message):
        file = str(oci_cloud.write_profile(tmp_path, **entries))
        store = oci_cloud.store(bucket, extra={'config_file': file, **extra})
        with pytest.raises(ConfigError, match=message):
            read_bytes(store, 'x')

    @pytest.mark.parametrize('extra', [{}, {'auth': 'api_key'}])
    def test_nothing_is_configured(self, oci_cloud, bucket, monkeypatch, tmp_path, extra):
        monkeypatch.delenv('OCI_CONFIG_FILE')
        monkeypatch.setenv('HOME', str(tmp_path))
        monkeypatch.setattr(oci, 'CHASSIS', tmp_path / 'none')
        for call in everything(oci_cloud.store(bucket, extra=extra)):
            with pytest.raises(AccessDeniedError, match=r'there are none: .*~/\.oci/config.*oci setup config'):
                call()


class TestTokens:
    """Credentials that expire."""

    @pytest.fixture
    def session(self, oci_cloud, tmp_path):
        """A profile as ``oci session authenticate`` writes it."""
        token_file = tmp_path / 'token'
        key, _ = oci_cloud.new_key(tmp_path, name='ST$first')
        token_file.write_text('first')
        file = oci_cloud.write_profile(tmp_path, key_file=str(key), security_token_file=str(token_file))
        return {'config_file': str(file)}, token_file, key

    @pytest.mark.parametrize('auth', [{}, {'auth': 'security_token'}])
    def test_the_token_of_a_session(self, oci_cloud, bucket, session, auth):
        assert read_bytes(oci_cloud.store(bucket, extra={**session[0], **auth}), 'x') == b'1'

    def test_it_is_read_again_when_it_was_refreshed(self, oci_cloud, bucket, session):
        extra, token_file, _ = session
        store = oci_cloud.store(bucket, extra=extra)
        assert read_bytes(store, 'x') == b'1'
        oci_cloud.keys['ST$second'] = oci_cloud.keys.pop('ST$first')
        with pytest.raises(AccessDeniedError, match='401'):
            read_bytes(store, 'x')
        token_file.rename(token_file.with_suffix('.old'))
        with pytest.raises(AccessDeniedError, match='401'):  # with the old token, as long as there is no new one
            read_bytes(store, 'x')
        token_file.write_text('second\n')
        os.utime(token_file, (1, 1))  # another time, however coarse the file system's clock is
        assert read_bytes(store, 'x') == b'1'
        assert read_bytes(pickle.loads(pickle.dumps(store)), 'x') == b'1'

    @pytest.fixture
    def new_principal(self, oci_cloud, monkeypatch, tmp_path):
        """What the cloud puts into a container: a token and a key, which it replaces in time."""
        import jwt

        token_file, key_file = tmp_path / 'rpst', tmp_path / 'key.pem'

        def renew(*, seconds):
            claims = {'exp': int(time.time()) + seconds, 'res_tenant': TENANCY, 'jti': secrets.token_hex(4)}
            token = jwt.encode(claims, 'x' * 32, algorithm='HS256')
            key, _ = oci_cloud.new_key(tmp_path, name=f'ST${token}')
            key.rename(key_file)
            token_file.write_text(token)
            return f'ST${token}'

        monkeypatch.delenv('OCI_CONFIG_FILE')
        monkeypatch.setenv('HOME', str(tmp_path))
        monkeypatch.setenv('OCI_RESOURCE_PRINCIPAL_VERSION', '2.2')
        monkeypatch.setenv('OCI_RESOURCE_PRINCIPAL_RPST', str(token_file))
        monkeypatch.setenv('OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM', str(key_file))
        monkeypatch.setenv('OCI_RESOURCE_PRINCIPAL_REGION', 'us-ashburn-1')
        return renew

    def test_a_resource_principal(self, oci_cloud, bucket, new_principal):
        new_principal(seconds=600)
        store = oci_cloud.store(bucket, namespace='')
        assert read_bytes(store, 'x') == b'1'
        assert 'credentials of the resource principal' in refusal(oci_cloud, store)

    def test_its_token_is_replaced_when_it_is_refused(self, oci_cloud, bucket, new_principal):
        first = new_principal(seconds=600)
        store = oci_cloud.store(bucket)
        assert read_bytes(store, 'x') == b'1'
        del oci_cloud.keys[first]
        new_principal(seconds=600)
        assert read_bytes(store, 'x') == b'1'

    def test_a_machine_of_the_cloud_has_a_principal(self, oci_cloud, bucket, monkeypatch, tmp_path):
        from oci.auth import signers
        from oci.signer import load_private_key_from_file

        key, _ = oci_cloud.new_key(tmp_path, name='ST$machine')

        class Machine(signers.SecurityTokenSigner):
            """As the SDK's own, which asks services that are only there."""

            def __init__(self):
                self.region = 'us-ashburn-1'
                super().__init__('machine', load_private_key_from_file(str(key)))

            def refresh_security_token(self):
                """There is no other."""

        monkeypatch.delenv('OCI_CONFIG_FILE')
        monkeypatch.setenv('HOME', str(tmp_path))
        monkeypatch.setattr(signers, 'InstancePrincipalsSecurityTokenSigner', Machine)
        monkeypatch.setattr(oci, 'CHASSIS', tmp_path / 'chassis')
        (tmp_path / 'chassis').write_text('OracleCloud.com\n')
        store = oci_cloud.store(bucket)
        assert read_bytes(store, 'x') == b'1'
        assert 'credentials of the instance principal' in refusal(oci_cloud, store)

    def test_a_principal_that_is_none(self, oci_cloud, bucket, monkeypatch):
        monkeypatch.setenv('OCI_CLI_AUTH', 'resource_principal')
        with pytest.raises(AccessDeniedError, match=r'no credentials of the resource principal here.*OCI_CLI_AUTH'):
            read_bytes(oci_cloud.store(bucket), 'x')
