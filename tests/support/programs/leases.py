"""Leases that this process keeps between two reads."""

from __future__ import annotations

import math
from unittest import mock

from headrace.storage.cache import lease_cache


def release_without_a_pause() -> None:
    """Release all, and have the process keep leases again from now on."""
    with mock.patch.object(lease_cache, 'PAUSE', -math.inf):
        lease_cache.release_leases()
