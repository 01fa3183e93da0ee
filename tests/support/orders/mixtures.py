"""A mixture of streams, and loaders of it."""

from __future__ import annotations

from typing import Any

GLOBAL_BATCH = 8

LOADER_KINDS: dict[str, dict[str, Any]] = {
    'native': {},
    'exact': {'remainder': 'exact'},
    'drop': {'remainder': 'drop'},
    'skip': {'skip': [['3ba', '5ba'], [130, 140]]},
    'lengths': {'cost': 'id', 'bucket': 3, 'balance': 1},
    'stratified': {'batching_method': 'stratified'},
}
"""Options of datasets whose batches are those of one rank on any ranks."""
