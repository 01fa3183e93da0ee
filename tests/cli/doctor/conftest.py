"""Fixtures of doctor tests."""

from __future__ import annotations

import pytest

from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore


@pytest.fixture
def remote(make_dataset, own_stores) -> str:
    """A dataset in a store that is no folder."""
    register_store('far', lambda url, _options: LocalStore(url.removeprefix('far://')))
    return f'far://{make_dataset()}'
