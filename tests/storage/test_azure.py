import os

import pytest

from headrace.testing.servers.azure import INSTALL_AZURITE, azurite_server, find_azurite
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import ProxiedStore, StoreFaultContract
from headrace.testing.stores import StoreContract, put_bytes, read_bytes

pytestmark = pytest.mark.cloud


@pytest.fixture(scope='session')
def azurite():
    if find_azurite() is None:
        pytest.skip(f'needs node and: {INSTALL_AZURITE}')
    with azurite_server() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The emulator's account, and nothing of the user's own configuration."""
    for name in list(os.environ):
        if name.startswith('AZURE_'):
            monkeypatch.delenv(name)
    monkeypatch.setenv('AZURE_ACCOUNT_NAME', 'devstoreaccount1')


@pytest.fixture
def with_key(azurite, monkeypatch):
    monkeypatch.setenv('AZURE_ACCOUNT_ACCESS_KEY', azurite.key)


@pytest.mark.usefixtures('with_key')
class TestAzureStore(StoreContract):
    @pytest.fixture(params=['azure', 'azure-dl'])
    def store(self, request, azurite):
        return azurite.store(azurite.new_container(), 'some/prefix', scheme=request.param)


@pytest.mark.usefixtures('with_key')
class TestAzureStoreWithoutPrefix(StoreContract):
    @pytest.fixture
    def store(self, azurite):
        return azurite.store(azurite.new_container())


class TestAzureFaults(StoreFaultContract):
    @pytest.fixture
    def direct(self, azurite, with_key):
        return azurite.store(azurite.new_container(), 'p')

    @pytest.fixture
    def proxied(self, azurite, direct):
        with FaultProxy(azurite.root_url) as proxy:
            options = {
                'endpoint_url': f'{proxy.endpoint_url}/{azurite.account}',
                'read_timeout': 0.5,
                'connect_timeout': 0.5,
            }
            yield ProxiedStore(azurite.store(direct.container, 'p', **options), proxy)
