"""URL <-> bytes of an object, and the cache of shards on this machine's disk.

1. `resolve.open_store` turns a URL into a `protocol.Store`: five verbs over the objects below one root.
2. `transfer.download` copies an object into a file, continuing at the byte reached when a transfer breaks.
3. `cache.index_fetch` has a folder hold the index that the remote has now.
4. `cache.ShardCache` makes shards present in a folder and lends them out, mapped.

Imports the standard library and numpy only; a cloud's SDK is imported by its backend when its scheme is first opened.
"""

from __future__ import annotations

from headrace.storage.cache.entry import CachePart, FetchResult, FetchStatus, LazyEntry
from headrace.storage.cache.shard_cache import CacheEntry, CacheLimit, CacheStats, Lease, ShardCache
from headrace.storage.protocol import ObjectInfo, Store, StoreOptions
from headrace.storage.resolve import fsspec_store, known_schemes, local_path, open_store, register_store, split_url
from headrace.storage.stats import CacheCounters, CacheCounts, CountTable
from headrace.storage.transfer.download import DEFAULT, Transfer, download
from headrace.storage.transfer.retry import Retry

__all__ = [
    'DEFAULT',
    'CacheCounters',
    'CacheCounts',
    'CacheEntry',
    'CacheLimit',
    'CachePart',
    'CacheStats',
    'CountTable',
    'FetchResult',
    'FetchStatus',
    'LazyEntry',
    'Lease',
    'ObjectInfo',
    'Retry',
    'ShardCache',
    'Store',
    'StoreOptions',
    'Transfer',
    'download',
    'fsspec_store',
    'known_schemes',
    'local_path',
    'open_store',
    'register_store',
    'split_url',
]
