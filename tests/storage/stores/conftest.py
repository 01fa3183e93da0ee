"""Fixtures of stores tests."""

from __future__ import annotations

import functools

import pytest

from headrace.testing.proxy import FaultProxy
from headrace.testing.stores import put_bytes
from tests.support.servers.azure import INSTALL_AZURITE, azurite_server, find_azurite
from tests.support.servers.databricks import databricks_server
from tests.support.servers.gcs import INSTALL, gcs_emulator, gcs_gate, have_gcs_emulator
from tests.support.servers.oci import oci_server


@pytest.fixture(scope='session')
def workspace():
    with databricks_server() as server:
        yield server


@pytest.fixture
def databricks_proxy(workspace):
    with FaultProxy(workspace.host) as databricks_proxy:
        yield databricks_proxy


@pytest.fixture(scope='session')
def azurite():
    if find_azurite() is None:
        pytest.skip(f'needs node and: {INSTALL_AZURITE}')
    with azurite_server() as server:
        yield server


@pytest.fixture
def with_key(azurite, monkeypatch):
    monkeypatch.setenv('AZURE_ACCOUNT_ACCESS_KEY', azurite.key)


@pytest.fixture
def container(azurite):
    name = azurite.new_container()
    azurite.client().get_blob_client(name, 'x').upload_blob(b'1')
    return name


@pytest.fixture(scope='session')
def emulator():
    if not have_gcs_emulator():
        pytest.skip(f'needs: {INSTALL}')
    with gcs_emulator() as server:
        yield server


@pytest.fixture(scope='session')
def gate(emulator):
    with gcs_gate(emulator) as server:
        yield server


@pytest.fixture(scope='session')
def account(gate, tmp_path_factory):
    path = tmp_path_factory.mktemp('gcs') / 'key.json'
    gate.write_service_account(path)
    return {'service_account_file': str(path)}


@pytest.fixture
def hmac_keys(monkeypatch):
    monkeypatch.setenv('GCS_KEY', 'testkey')
    monkeypatch.setenv('GCS_SECRET', 'testsecret')
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'not these')
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'not these')
    monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:9')


@pytest.fixture(scope='session')
def oci_cloud():
    oci = pytest.importorskip('oci', reason='needs: pip install "headrace[oci]"')
    # Each client checks its key for 40 ms; the tests have hundreds of clients and a few keys.
    with pytest.MonkeyPatch.context() as patch, oci_server() as oci_cloud:
        patch.setattr(oci.signer, 'load_private_key', functools.cache(oci.signer.load_private_key))
        yield oci_cloud


@pytest.fixture(scope='session')
def oci_config_file(oci_cloud, tmp_path_factory):
    return oci_cloud.write_profile(tmp_path_factory.mktemp('oci'))


@pytest.fixture
def bucket(oci_cloud):
    name = oci_cloud.new_bucket()
    put_bytes(oci_cloud.store(name), 'x', b'1')
    return name
