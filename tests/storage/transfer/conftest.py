"""Fixtures of transfer tests."""

from __future__ import annotations

import pytest

from headrace.storage import download
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import put_bytes
from tests.support.stores.downloads import DATA, RETRY


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
