import os

import pytest

from headrace.testing.proxy import FaultProxy
from headrace.testing.servers.oci import oci_server
from headrace.testing.store_faults import ProxiedStore, StoreFaultContract
from headrace.testing.stores import StoreContract

pytestmark = pytest.mark.cloud


@pytest.fixture(scope='session')
def server():
    pytest.importorskip('oci', reason='needs: pip install "headrace[oci]"')
    with oci_server() as server:
        yield server


@pytest.fixture(scope='session')
def config_file(server, tmp_path_factory):
    return server.write_profile(tmp_path_factory.mktemp('oci'))


@pytest.fixture(autouse=True)
def environment(config_file, monkeypatch):
    """A profile that the server knows, and nothing of the user's own configuration."""
    for name in list(os.environ):
        if name.startswith('OCI_'):
            monkeypatch.delenv(name)
    monkeypatch.setenv('OCI_CONFIG_FILE', str(config_file))


class TestOCIStore(StoreContract):
    @pytest.fixture
    def store(self, server):
        return server.store(server.new_bucket(), 'some/prefix')


class TestOCIStoreOfTheTenancy(StoreContract):
    @pytest.fixture
    def store(self, server):
        return server.store(server.new_bucket(), namespace='')


class TestOCIFaults(StoreFaultContract):
    @pytest.fixture
    def direct(self, server):
        return server.store(server.new_bucket(), 'p')

    @pytest.fixture
    def proxied(self, server, direct):
        with FaultProxy(server.endpoint_url) as proxy:
            options = {'endpoint_url': proxy.endpoint_url, 'read_timeout': 0.5, 'connect_timeout': 0.5}
            yield ProxiedStore(server.store(direct.bucket, 'p', **options), proxy)


class TestS3Interface(StoreContract):
    """Object Storage's other interface, as users reach it by ``s3://``; a RADOS gateway stands in for the service.

    What Oracle's differs in from others is how it is addressed: by path, with its own names of regions.
    """

    @pytest.fixture
    def store(self, rgw):
        return rgw.store(rgw.new_bucket(), 'p', region='us-ashburn-1', extra={'addressing_style': 'path'})
