from __future__ import annotations

import functools
import gzip
import io

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import StoreOptions, open_store
from headrace.storage.stores.further.oci import OCIStore
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import StoreFaultContract, through_proxy
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
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
        assert repr(OCIStore('data', '/p/', namespace='space')) == "OCIStore('oci://data@space/p')"


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
