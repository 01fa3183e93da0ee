"""DBFS, the file system of a Databricks workspace before volumes."""

from __future__ import annotations

from typing import ClassVar

import pytest

from headrace.storage import open_store
from headrace.testing.proxy import Fault
from headrace.testing.stores import StoreContract
from tests.support.stores.databricks_faults import DatabricksFaults
from tests.support.stores.store_environments import databricks_environment  # noqa: F401

pytestmark = pytest.mark.cloud


class TestDbfsStore(StoreContract):
    ROW = '`dbfs:/`: our own server'

    @pytest.fixture
    def store(self, workspace):
        return open_store(f'dbfs:{workspace.new_folder()}')


def in_block(kind, after):
    """A fault of the request that fetches the block of that byte; its body is larger than the block."""
    return Fault(match='GET /api/2.0/dbfs/read', skip=after >> 20, times=1, **{kind: after & 0xFFFFF})


class TestDbfsFaults(DatabricksFaults):
    ROW = '`dbfs:/`: our own server'

    # One object takes several requests.
    BROKEN_BODIES: ClassVar = {
        'reset': lambda after: in_block('reset_after', after),
        'truncated': lambda after: in_block('close_after', after),
        'stalled': lambda after: in_block('stall_after', after),
    }

    @pytest.fixture
    def direct(self, workspace):
        return open_store(f'dbfs:{workspace.new_folder()}')
