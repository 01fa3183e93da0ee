"""The contract of faults against a Databricks workspace."""

from __future__ import annotations

import pytest

from headrace.storage import StoreOptions, open_store
from headrace.testing.store_faults import ProxiedStore, StoreFaultContract


class DatabricksFaults(StoreFaultContract):
    @pytest.fixture
    def proxied(self, databricks_proxy, direct, read_timeout):
        options = StoreOptions(
            endpoint_url=databricks_proxy.endpoint_url, read_timeout=read_timeout, connect_timeout=read_timeout
        )
        store = open_store(direct.url, options)
        # The SDK looks the workspace up, which is none of the requests counted.
        self.RETRY.call('list', lambda: list(store.list('')))
        databricks_proxy.requests.clear()
        return ProxiedStore(store, databricks_proxy)
