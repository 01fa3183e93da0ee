"""Indexes that were replaced: `merge_index` and `convert(append=True)` keep them beside the new one.

A kept index is ``index.00001.json`` and so on, in the order of replacement. Its shards stay, so it can come back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headrace.convert.record import PLAN, get_bytes, put_bytes
from headrace.convert.stored_dataset import INDEX, PATIENT, object_url
from headrace.dataset.writing.start import MARK
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.format import ShardInfo, parse_index
from headrace.redaction import redact
from headrace.storage import Retry, Store, StoreOptions, open_store

__all__ = [
    'KeptIndex',
    'check_finished',
    'keep_index',
    'kept_indexes',
    'missing_shards',
    'read_if_there',
    'replace_index',
    'rollback',
]

_KEPT: Final = re.compile(r'index\.(\d{5,})\.json')
_THREADS: Final = 32


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """An index that was replaced."""

    name: str
    """Of its file."""
    shards: int
    samples: int


def kept_indexes(out: str | os.PathLike[str], *, options: StoreOptions | None = None) -> list[KeptIndex]:
    """The indexes of a dataset that were replaced, the oldest first.

    Args:
        out: folder or URL of the dataset.
        options: how to reach the store.

    Raises:
        FormatError: one is damaged.
        StorageError: the store failed.
    """
    store = open_store(out, options)
    found: list[KeptIndex] = []
    for name in _kept(store, PATIENT):
        shards = _parse(store, name, get_bytes(store, name, PATIENT))
        found.append(KeptIndex(name, len(shards), sum(shard.samples for shard in shards)))
    return found


def rollback(out: str | os.PathLike[str], to: str, *, options: StoreOptions | None = None) -> KeptIndex:
    """Bring a replaced index back. The one that it replaces is kept in its turn, and no shard is touched.

    Args:
        out: folder or URL of the dataset.
        to: name of the kept index.
        options: how to reach the store.

    Returns:
        The index that was replaced now, under the name that it has from now on.

    Raises:
        ConfigError: there is no kept index of this name, or shards of it are gone.
        FileExistsError: a writer or a conversion to `out` has not finished.
        StorageError: the store failed.
    """
    store = open_store(out, options)
    check_finished(store, PATIENT)
    names = list(_kept(store, PATIENT))
    if to not in names:
        raise ConfigError(
            f'A rollback brings back an index that was kept, but got {to!r}, and {store.url} has '
            f'{", ".join(names) or "none"}. Name one of them.'
        )
    data = get_bytes(store, to, PATIENT)
    shards = _parse(store, to, data)
    gone = missing_shards([store], shards, ())
    if gone:
        raise ConfigError(
            f'An index comes back with all of its shards, but {len(gone)} of the {len(shards)} of '
            f'{object_url(store, to)} are gone, such as {gone[0].files[0].raw.basename}. Restore them, or name another '
            f'index.'
        )
    name = replace_index(store, data, PATIENT)
    replaced = _parse(store, name, get_bytes(store, name, PATIENT)) if name else shards
    return KeptIndex(name or to, len(replaced), sum(shard.samples for shard in replaced))


def replace_index(store: Store, index: bytes, retry: Retry) -> str | None:
    """Store an index; the one that it replaces is kept.

    Returns:
        The name of the kept index; None if there was none, or it was the same.
    """
    before = read_if_there(store, INDEX, retry)
    name = None
    if before is not None and before != index:
        name = keep_index(store, before, retry)
    if before != index:
        put_bytes(store, INDEX, index, retry)
    return name


def keep_index(store: Store, index: bytes, retry: Retry) -> str:
    """Keep a copy of an index, unless there is one; its name."""
    kept = _kept(store, retry)
    for name, size in kept.items():
        if size == len(index) and get_bytes(store, name, retry) == index:
            return name
    name = f'index.{1 + max((_number(name) for name in kept), default=0):05}.json'
    put_bytes(store, name, index, retry)
    return name


def check_finished(store: Store, retry: Retry) -> None:
    """Refuse a dataset whose index a writer or a conversion is about to replace.

    Raises:
        FileExistsError: it is.
    """
    for name in (MARK, PLAN):
        if _has(store, name, retry):
            raise FileExistsError(
                redact(
                    f'{store.url} is still being written: it holds {name}. Wait for its writer. If that was killed, '
                    f'run it again to continue, or remove that file to give its new samples up.'
                )
            )


def missing_shards(
    stores: Sequence[Store], shards: Iterable[ShardInfo], keys: Container[str], retry: Retry = PATIENT
) -> list[ShardInfo]:
    """The shards of which no store has all files, compressed or not.

    Args:
        stores: where they may be.
        shards: of an index at the root of each store.
        keys: of objects that are known to be there.
        retry: how often to try a request.
    """

    def is_there(name: str) -> bool:
        return name in keys or any(_has(store, name, retry) for store in stores)

    def is_missing(shard: ShardInfo) -> bool:
        return not all(
            is_there(file.raw.basename) or (file.zip and is_there(file.zip.basename)) for file in shard.files
        )

    shards = list(shards)
    with ThreadPoolExecutor(_THREADS) as threads:
        return [shard for shard, missing in zip(shards, threads.map(is_missing, shards), strict=True) if missing]


def read_if_there(store: Store, key: str, retry: Retry) -> bytes | None:
    """An object, whole; None if there is none."""
    try:
        return get_bytes(store, key, retry)
    except ObjectNotFoundError:
        return None


def _has(store: Store, key: str, retry: Retry) -> bool:
    try:
        retry.call(f'Looking for {object_url(store, key)}', lambda: store.head(key))
    except ObjectNotFoundError:
        return False
    return True


def _kept(store: Store, retry: Retry) -> dict[str, int]:
    """Name and bytes of each kept index, in their order."""
    listed = retry.call(f'Listing {store.url}', lambda: [*store.list('index.')])
    found = [(info.key, info.size) for info in listed if _KEPT.fullmatch(info.key)]
    return dict(sorted(found, key=lambda pair: _number(pair[0])))


def _number(name: str) -> int:
    found = _KEPT.fullmatch(name)
    assert found is not None
    return int(found[1])


def _parse(store: Store, name: str, data: bytes) -> Sequence[ShardInfo]:
    return parse_index(data, source=object_url(store, name), allow_unsafe_types=True, allow_empty=True)
