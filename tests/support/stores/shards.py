"""A small remote folder of shards, and entries for it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.errors import (
    ChecksumError,
    FormatError,
)
from headrace.storage import CacheEntry, CachePart, CacheStats, Retry, ShardCache
from headrace.storage.cache.cached_index import CachedIndex
from headrace.storage.cache.index_fetch import IndexCheck, IndexFetch
from headrace.storage.stores.local import LocalStore

SIZE = 40_000


FAST = Retry(attempts=3, first_delay=0.001)


class StuckStore(LocalStore):
    """Of every object, only the beginning comes."""

    def get(self, key, out, **how):
        out.write(b'half')
        time.sleep(100)


def check_hash(path, *, sha1):
    if hashlib.sha1(path.read_bytes()).hexdigest() != sha1:
        raise ChecksumError(f'{path.name}: sha1 differs.')


def unpack(packed, raw, limit):
    try:
        data = gzip.decompress(packed.read_bytes())
    except (OSError, EOFError) as error:
        raise FormatError(f'{packed.name} is no gzip file: {error}') from error
    if len(data) > limit:
        raise FormatError(f'{packed.name} unpacks to more than {limit} bytes.')
    raw.write_bytes(data)


@dataclass
class Remote:
    folder: object
    data: dict
    """Bytes of each raw file."""
    entries: list

    @property
    def store(self):
        return LocalStore(self.folder)

    def entry_of(self, name):
        for entry in self.entries:
            for part in entry.parts:
                if name in (part.name, part.packed_name):
                    return entry
        return None

    def check(self, lease):
        for part, buffer in zip(lease.entry.parts, lease.buffers, strict=True):
            assert buffer == self.data[part.name]


def make_remote(folder, count=4, *, size=SIZE, packed=False, parts=1, prefix='', seed=0):
    """``count`` shards of ``parts`` files each, of ``size`` bytes."""
    data, entries = {}, []
    for number in range(count):
        made = []
        for index in range(parts):
            name = f'{prefix}shard.{number:05d}.mds' + ('.meta' if index else '')
            block = hashlib.sha256(f'{seed}/{name}'.encode()).digest()
            raw = (block * (size // 32 + 1))[:size]
            if packed:  # gzip must not win: what is packed has about the size of what is not
                raw = hashlib.shake_256(f'{seed}/{name}'.encode()).digest(size)
            data[name] = raw
            stored = gzip.compress(raw, mtime=0) if packed else raw
            stored_name = f'{name}.gz' if packed else name
            path = folder / stored_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored)
            made.append(
                CachePart(
                    name,
                    len(raw),
                    packed_name=stored_name if packed else None,
                    packed_size=len(stored) if packed else None,
                    verify=partial(check_hash, sha1=hashlib.sha1(raw).hexdigest()),
                    verify_copy=partial(check_hash, sha1=hashlib.sha1(raw).hexdigest()),
                    verify_packed=partial(check_hash, sha1=hashlib.sha1(stored).hexdigest()) if packed else None,
                    unpack=unpack if packed else None,
                )
            )
        entries.append(CacheEntry(tuple(made), id=number))
    return Remote(folder, data, entries)


def names(folder):
    """All files below a folder, relative, but the ledger: a count on a slow machine may leave one."""
    found = (path for path in folder.rglob('*') if not path.is_dir() and path.name != 'ledger')
    return sorted(str(path.relative_to(folder)) for path in found)


def cache_of(remote, folder, **how):
    how.setdefault('store', remote.store)
    how.setdefault('entry_of', remote.entry_of)
    how.setdefault('retry', FAST)
    return ShardCache(folder, **how)


class TextReader:
    """Reads an index that is the text '{}', or any."""

    def __init__(self, *, checks=False):
        self.checks = checks

    def read(self, path):
        if path.read_text() != '{}' and self.checks:
            raise FormatError('no index')

    def unproven(self, cached):
        return ()


def fetch_index(folder, store, name='index.json', *, checks=False, retry=FAST):
    """The index of a cache folder, fetched and read; a remote that was asked before is not asked again."""
    index = CachedIndex(folder, name)
    check, reader = IndexCheck(since=0.0), TextReader(checks=checks)
    IndexFetch(index=index, store=store, reader=reader, check=check, retry=retry, stats=CacheStats()).run()
    return index


def disk_use(folder):
    """What an observer sees: the sizes of all files but lock files and the ledger, of a line each."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            if name.endswith('.lock') or name == 'ledger':
                continue
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total
