"""Oracle's Object Storage, and credentials: profiles of its command line, and principals."""

from __future__ import annotations

import functools
import gzip
import io
import os
import pickle
import secrets
import time

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import StoreOptions, open_store
from headrace.storage.stores.further import oci
from headrace.storage.stores.further.oci import OCIStore
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import StoreFaultContract, through_proxy
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.servers.oci import TENANCY, USER
from tests.support.stores.store_environments import oci_environment  # noqa: F401
from tests.support.stores.verbs import everything

pytestmark = pytest.mark.cloud


class TestOCIStore(StoreContract):
    ROW = '`oci://`: our own server'

    @pytest.fixture
    def store(self, oci_cloud):
        return oci_cloud.store(oci_cloud.new_bucket(), 'some/prefix')


class TestOCIStoreOfTheTenancy(StoreContract):
    ROW = '`oci://`: our own server'

    @pytest.fixture
    def store(self, oci_cloud):
        return oci_cloud.store(oci_cloud.new_bucket(), namespace='')


class TestOCIFaults(StoreFaultContract):
    ROW = '`oci://`: our own server'

    @pytest.fixture
    def direct(self, oci_cloud):
        return oci_cloud.store(oci_cloud.new_bucket(), 'p')

    @pytest.fixture
    def proxied(self, oci_cloud, direct, read_timeout):
        store = functools.partial(oci_cloud.store, direct.bucket, 'p')
        with through_proxy(oci_cloud.endpoint_url, store, read_timeout=read_timeout) as proxied:
            yield proxied

    SILENCE = 1.0


class TestUrls:
    @pytest.mark.parametrize(
        ('url', 'bucket', 'namespace', 'prefix'),
        [
            ('oci://data', 'data', '', ''),
            ('oci://data/a/b/', 'data', '', 'a/b'),
            ('oci://data@space/a', 'data', 'space', 'a'),
            ('oci://My_data.1@space', 'My_data.1', 'space', ''),
        ],
    )
    def test_forms(self, url, bucket, namespace, prefix):
        store = open_store(url)
        assert isinstance(store, OCIStore)
        assert (store.bucket, store.namespace, store.prefix) == (bucket, namespace, prefix)
        assert store.url == url.rstrip('/')

    @pytest.mark.parametrize('url', ['oci://', 'oci:///x', 'oci://@space/x', 'oci://data@/x', 'oci://a@b@c'])
    def test_bad_forms_are_refused(self, url):
        with pytest.raises(ConfigError, match=r'oci://bucket@namespace/prefix') as caught:
            open_store(url)
        assert url in str(caught.value)

    def test_the_server_is_that_of_the_region(self, monkeypatch):
        def server(**options):
            return open_store('oci://data@space', StoreOptions(**options))._server()

        assert server() == 'https://objectstorage.us-ashburn-1.oraclecloud.com'  # of the profile
        monkeypatch.setenv('OCI_CLI_REGION', 'uk-london-1')
        assert server() == 'https://objectstorage.uk-london-1.oraclecloud.com'
        assert server(region='eu-frankfurt-1') == 'https://objectstorage.eu-frankfurt-1.oraclecloud.com'
        monkeypatch.setenv('OCI_CLI_ENDPOINT', 'https://objectstorage.elsewhere.example')
        assert server(region='eu-frankfurt-1') == 'https://objectstorage.elsewhere.example'
        assert server(endpoint_url='http://127.0.0.1:9') == 'http://127.0.0.1:9'

    def test_no_region_is_a_configuration_error(self, oci_cloud, tmp_path):
        file = oci_cloud.write_profile(tmp_path, region='')
        with pytest.raises(ConfigError, match=r'the region \(none\)'):
            read_bytes(open_store('oci://data@space', StoreOptions(extra={'config_file': str(file)})), 'x')

    def test_unknown_extra_options_are_refused(self):
        with pytest.raises(ConfigError, match=r"\['profil'\]"):
            open_store('oci://data', StoreOptions(extra={'profil': 'x'}))


class TestErrors:
    def test_a_wrong_key_names_its_source_and_the_server(self, oci_cloud, bucket, tmp_path):
        file = oci_cloud.write_profile(tmp_path, fingerprint=':'.join(['00'] * 16))
        for namespace in (oci_cloud.namespace, ''):
            for call in everything(oci_cloud.store(bucket, namespace=namespace, extra={'config_file': str(file)})):
                with pytest.raises(AccessDeniedError, match=rf"{oci_cloud.endpoint_url}.*'DEFAULT' of {file}"):
                    call()

    def test_a_signature_of_another_key_is_refused(self, oci_cloud, bucket, tmp_path):
        """The server checks what it is sent; else the tests above would show little."""
        other, _ = oci_cloud.new_key(tmp_path)
        file = oci_cloud.write_profile(tmp_path, key_file=str(other))
        with pytest.raises(AccessDeniedError, match='another signature'):
            read_bytes(oci_cloud.store(bucket, extra={'config_file': str(file)}), 'x')

    def test_anonymous_requests_are_unsigned(self, oci_cloud, bucket):
        with pytest.raises(AccessDeniedError, match=r'no credentials \(anonymous\)'):
            read_bytes(oci_cloud.store(bucket, anonymous=True), 'x')
        public = oci_cloud.new_bucket(public=True)
        put_bytes(oci_cloud.store(public), 'x', b'1')
        with FaultProxy(oci_cloud.endpoint_url) as proxy:
            store = oci_cloud.store(public, anonymous=True, endpoint_url=proxy.endpoint_url)
            assert read_bytes(store, 'x') == b'1'
            assert [info.key for info in store.list('')] == ['x']
            assert 'authorization' not in proxy.requests[0].headers
            with pytest.raises(AccessDeniedError):
                put_bytes(store, 'x', b'2')

    def test_anonymous_requests_need_a_namespace(self, oci_cloud, bucket):
        with pytest.raises(ConfigError, match=r'oci://bucket@namespace/prefix'):
            read_bytes(oci_cloud.store(bucket, namespace='', anonymous=True), 'x')

    def test_a_missing_object_says_that_the_bucket_exists(self, oci_cloud, bucket):
        store = oci_cloud.store(bucket, 'p')
        for call in (store.head, lambda key: read_bytes(store, key)):
            with pytest.raises(ObjectNotFoundError, match=rf"bucket '{bucket}' .* exists at .* object 'p/nothing'"):
                call('nothing')

    def test_a_missing_bucket_is_named_and_may_be_forbidden(self, oci_cloud, bucket):
        for store in (oci_cloud.store('no-such'), oci_cloud.store(bucket, namespace='no-such')):
            for call in everything(store):
                with pytest.raises(ObjectNotFoundError, match=r"'no-such'.* does not exist .* may not read it"):
                    call()

    def test_nobody_listens(self, oci_cloud, bucket):
        with pytest.raises(TransferError, match=r'127\.0\.0\.1:9'):
            read_bytes(oci_cloud.store(bucket, endpoint_url='http://127.0.0.1:9'), 'x')

    def test_an_impossible_endpoint_is_a_configuration_error(self, oci_cloud, bucket):
        with pytest.raises(ConfigError, match='endpoint'):
            read_bytes(oci_cloud.store(bucket, endpoint_url='127.0.0.1:9'), 'x')

    @pytest.mark.parametrize(('offset', 'size'), [(2, None), (2, 1), (1, 1)])
    def test_a_range_that_begins_beyond_the_end_is_an_error(self, oci_cloud, bucket, offset, size):
        with pytest.raises(ConfigError, match='range lies inside'):
            read_bytes(oci_cloud.store(bucket), 'x', offset=offset, size=size)

    def test_another_version_is_told_also_where_nothing_is_left(self, oci_cloud, bucket):
        with pytest.raises(TransferError, match='changed'):
            read_bytes(oci_cloud.store(bucket), 'x', offset=1, etag='another')

    def test_an_error_of_the_file_that_is_written_is_not_the_stores(self, oci_cloud, bucket):
        class Full:
            def write(self, data):
                raise ConnectionResetError('of the file')

        with pytest.raises(ConnectionResetError, match='of the file') as caught:
            oci_cloud.store(bucket).get('x', Full())
        assert not isinstance(caught.value, StorageError)

    def test_an_upload_that_breaks_off_stores_nothing(self, oci_cloud, bucket):
        class Source(io.BytesIO):
            def read(self, size=-1):
                if self.tell() > 1 << 20:
                    raise LookupError('of the source')
                return super().read(min(size, 1 << 16))

        with pytest.raises(LookupError, match='of the source'):
            oci_cloud.store(bucket).put('x', Source(bytes(4 << 20)), size=4 << 20)
        assert read_bytes(oci_cloud.store(bucket), 'x') == b'1'


class TestRequests:
    def test_the_namespace_is_asked_for_once(self, oci_cloud, bucket):
        with FaultProxy(oci_cloud.endpoint_url) as proxy:
            store = oci_cloud.store(bucket, namespace='', endpoint_url=proxy.endpoint_url)
            for call in everything(store):
                call()
            assert [request.path.rstrip('/') for request in proxy.requests].count('/n') == 1
            assert len(proxy.requests) == 6

    def test_a_namespace_that_is_not_told_is_asked_for_again(self, oci_cloud, bucket):
        with FaultProxy(oci_cloud.endpoint_url, [Fault(status=503, times=1)]) as proxy:
            store = oci_cloud.store(bucket, namespace='', endpoint_url=proxy.endpoint_url)
            with pytest.raises(TransferError):
                read_bytes(store, 'x')
            assert read_bytes(store, 'x') == b'1'

    @pytest.mark.parametrize('namespace', [None, ''])
    def test_listing_goes_beyond_one_page(self, oci_cloud, namespace, monkeypatch):
        name = oci_cloud.new_bucket()
        store = oci_cloud.store(name, 'p', namespace=namespace)
        for i in range(25):
            put_bytes(store, f'k{i:04d}', b'')
        put_bytes(oci_cloud.store(name), 'q', b'')
        monkeypatch.setattr(oci_cloud, 'page', 10)
        assert [info.key for info in store.list('')] == [f'k{i:04d}' for i in range(25)]
        assert [info.key for info in store.list('k001')] == [f'k{i:04d}' for i in range(10, 20)]

    def test_the_folders_of_the_console_are_no_objects(self, oci_cloud, bucket):
        oci_cloud.buckets[bucket]['folder/'] = oci_cloud.buckets[bucket]['x']
        assert [info.key for info in oci_cloud.store(bucket).list('')] == ['x']

    def test_compressed_bytes_are_not_unpacked(self, oci_cloud, bucket):
        data = gzip.compress(b'text' * 1000)
        oci_cloud.buckets[bucket]['zipped'] = oci_cloud.buckets[bucket]['x']._replace(data=data, encoding='gzip')
        assert read_bytes(oci_cloud.store(bucket), 'zipped') == data

    def test_a_prefix_hides_what_is_outside(self, oci_cloud):
        name = oci_cloud.new_bucket()
        put_bytes(oci_cloud.store(name), 'pre/x', b'1')
        put_bytes(oci_cloud.store(name), 'prefix', b'2')
        assert [info.key for info in oci_cloud.store(name, 'pre').list('')] == ['x']
        assert repr(OCIStore('data', 'p/', namespace='space')) == "OCIStore('oci://data@space/p')"


class TestS3Interface(StoreContract):
    ROW = "OCI's interface of S3: Ceph RGW"

    """Object Storage's other interface, as users reach it by ``s3://``; a RADOS gateway stands in for the service.

    What Oracle's differs in from others is how it is addressed: by path, with its own names of regions.
    """

    @pytest.fixture
    def store(self, rgw):
        return rgw.store(rgw.new_bucket(), 'p', region='us-ashburn-1', extra={'addressing_style': 'path'})


@pytest.mark.slow
class TestS3InterfaceFaults(StoreFaultContract):
    ROW = "OCI's interface of S3: Ceph RGW"

    @pytest.fixture
    def direct(self, rgw):
        return rgw.store(rgw.new_bucket(), 'p')

    @pytest.fixture
    def proxied(self, rgw, direct, read_timeout):
        extra = {'addressing_style': 'path'}
        store = functools.partial(rgw.store, direct.bucket, 'p', region='us-ashburn-1', extra=extra)
        with through_proxy(rgw.endpoint_url, store, read_timeout=read_timeout) as proxied:
            yield proxied

    SILENCE = 1.5  # Ceph is several programs


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
