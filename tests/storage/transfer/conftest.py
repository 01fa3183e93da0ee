"""Fixtures of transfer tests."""

from __future__ import annotations

import os

import pytest

from headrace.storage import download
from headrace.storage.protocol import Store, StoreOptions
from headrace.storage.resolve import open_store
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import put_bytes
from tests.support.stores.downloads import DATA, RETRY
from tests.support.stores.every_store import REQUEST_TIMEOUT, URLS


@pytest.fixture
def local(tmp_path):
    store = LocalStore(tmp_path / 'store')
    put_bytes(store, 'x', DATA)
    return store


@pytest.fixture
def fetch(tmp_path):
    def fetch(store, retry=RETRY, **how):
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            count = download(store, 'x', out, retry, **how)
        data = (tmp_path / 'out').read_bytes()
        assert len(data) == count
        return data

    return fetch


@pytest.fixture
def ranges(monkeypatch):
    """Ranges of 1,000 bytes; DATA has 26 of them."""
    monkeypatch.setattr('headrace.storage.transfer.download.RANGE', 1000)


@pytest.fixture
def nothing_of_the_user(monkeypatch, tmp_path):
    """No settings of clouds, but those of the test."""
    for name in list(os.environ):
        if name.startswith(('AWS_', 'AZURE_', 'OCI_', 'HF_', 'HUGGING', 'GOOGLE_', 'GCS_', 'STORAGE_', 'DATABRICKS_')):
            monkeypatch.delenv(name)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')


@pytest.fixture
def open_at(kind, monkeypatch, nothing_of_the_user):
    """Open the store of this kind at an address."""

    def open_it(address: str, seconds: float = REQUEST_TIMEOUT) -> Store:
        extra = {'account_name': 'account'} if kind == 'azure' else {}
        if kind == 'databricks':
            monkeypatch.setenv('DATABRICKS_HOST', address)
            monkeypatch.setenv('DATABRICKS_TOKEN', 'token')
        options = StoreOptions(
            endpoint_url=f'{address}/account' if kind == 'azure' else address,
            region='us-east-1',
            anonymous=kind != 'databricks',
            read_timeout=5,
            request_timeout=seconds,
            extra=extra,
        )
        return open_store(URLS[kind], options)

    return open_it
