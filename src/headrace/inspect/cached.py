"""The content of cache folders: what they hold, what is in use, and their safe removal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.errors import CacheError, ConfigError, FormatError
from headrace.format import ShardTable, parse_index
from headrace.format.compression import unpack_file
from headrace.sources.source_index import SourceIndex
from headrace.storage.cache.cached_index import REMOTE_MARKER, read_marker
from headrace.storage.cache.entry import CacheEntry, CachePart
from headrace.storage.cache.fetch_lock import reclaim_fetches
from headrace.storage.cache.limit import LimitedFolder, Present, count_fetches, count_files, evict
from headrace.storage.cache.locks import held, open_to_lock, try_lock_file
from headrace.storage.stats import CacheStats

_DEEPEST: Final = 3  # folders between a given one and a stream's


@dataclass(frozen=True)
class CacheContent:
    folder: Path
    remote: str  # URL of the marker, without credentials; empty: not filled by headrace.
    num_shards: int  # Shards in the index.
    num_present: int  # Shards with files.
    bytes: int  # Bytes of these files.
    num_in_use: int  # Present shards under a lease, or under removal.
    num_fetches: int  # Running fetches.
    fetch_bytes: int  # Bytes of fetches, those of killed processes included.

    def to_json(self) -> dict[str, Any]:
        return _plain(self)


@dataclass(frozen=True)
class Removal:
    folder: Path
    num_removed: int  # Removed shards.
    bytes: int  # Bytes of these shards.
    num_in_use: int  # Shards in use, which stay.
    num_links: int  # Shards with a symbolic link, which stay.

    def to_json(self) -> dict[str, Any]:
        return _plain(self)


def _plain(report: CacheContent | Removal) -> dict[str, Any]:
    return {name.removeprefix('num_'): value for name, value in {**vars(report), 'folder': str(report.folder)}.items()}


def find_caches(root: Path) -> list[Path]:
    """The cache folders at a place: the folder itself, and those below it. No link is followed."""
    if root.is_symlink() or not root.is_dir():
        what = f'a link to {root.resolve()}: name that folder' if root.is_symlink() else 'no folder: check the path'
        raise ConfigError(f'A cache is a folder, but {root} is {what}.')
    folders = list(_marked(root, _DEEPEST))
    if not folders:
        raise ConfigError(
            f'A cache folder holds the file {REMOTE_MARKER}, which headrace writes, but neither {root} nor a folder in '
            f'it does. Name the `local` of a stream. Nothing was touched.'
        )
    return sorted(folders)


def _marked(folder: Path, depth: int) -> Iterator[Path]:
    if read_marker(folder):
        yield folder
    if not depth:
        return
    with contextlib.suppress(PermissionError), os.scandir(folder) as items:
        for item in items:
            if not item.name.startswith('.') and item.is_dir(follow_symlinks=False):
                yield from _marked(folder / item.name, depth - 1)


def look_into(folder: Path) -> CacheContent:
    """The content of a cache folder. Changes nothing; a folder that is absent is empty."""
    tables = _tables(folder)
    present = _present(folder, tables)
    fetch_bytes, locks = count_fetches(folder)
    return CacheContent(
        folder,
        read_marker(folder),
        num_shards=max(map(len, tables), default=0),
        num_present=len(present),
        bytes=sum(item.size for item in present),
        num_in_use=sum(_is_locked(folder / item.entry.key) for item in present),
        num_fetches=sum(map(_is_locked, locks)),
        fetch_bytes=fetch_bytes,
    )


def clear_cache(folder: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None) -> Removal:
    """Remove unused shards, and what killed fetches left. Runs continue: the index and the marker stay."""
    if not read_marker(folder):
        raise CacheError(
            f'Only a folder with the file {REMOTE_MARKER} is cleared, but {folder} has none. Name a cache folder.'
        )
    present = _present(folder, _tables(folder))
    removed = size = in_use = links = 0
    for number, item in enumerate(present, 1):
        if _has_link(folder, item.entry):
            links += 1
        else:
            outcome = evict(folder, item.entry)
            if isinstance(outcome, Path):
                in_use += 1
            elif outcome:
                removed += 1
                size += outcome
        progress(number, len(present))
    reclaim_fetches(folder)
    return Removal(folder, removed, size, in_use, links)


def _has_link(folder: Path, entry: CacheEntry) -> bool:
    names = [name for part in entry.parts for name in (part.name, part.packed_name) if name is not None]
    return any((folder / name).is_symlink() for name in names)


def _present(folder: Path, tables: Sequence[ShardTable]) -> list[Present]:
    def find(name: str) -> CacheEntry | None:
        for table in tables:
            shard = table.find(name)
            if shard is not None:
                return _entry(table, shard)
        return None

    limited = LimitedFolder(folder, find, CacheStats())
    count_files(limited)
    return limited.present


def _entry(table: ShardTable, shard: int) -> CacheEntry:
    info = table[shard]
    return CacheEntry(
        tuple(
            CachePart(
                name=file.raw.basename,
                size=file.raw.bytes,
                packed_name=None if file.zip is None else file.zip.basename,
                unpack=None if file.zip is None else partial(unpack_file, info.compression or ''),
            )
            for file in info.files
        )
    )


def _tables(folder: Path) -> list[ShardTable]:
    """The shards by each index in the folder: headrace's, or one for each choice of columns of another format."""
    tables: list[ShardTable] = []
    for path in (folder / 'index.json', *sorted(folder.glob('source*.index'))):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        try:
            if path.suffix == '.json':
                tables.append(parse_index(data, source=str(path), allow_unsafe_types=True, allow_empty=True))
            else:
                tables.append(SourceIndex.from_bytes(data).shards())
        except FormatError as error:
            raise CacheError(
                f'{path} names the shards of the cache, but is damaged: {error} Remove it: the next run fetches it.'
            ) from error
    return tables


def _is_locked(path: Path) -> bool:
    """Whether a process has locked a file; a link's is not looked at."""
    if path.is_symlink():
        return False
    try:
        handle = open_to_lock(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    with held(handle):
        return not try_lock_file(handle, path)
