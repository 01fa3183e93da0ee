"""The bytes in a cache folder: counted if that is cheap, else remembered between counts in a ledger.

A count looks at every file, 3 ms for a thousand. If it takes longer than `CHEAP`, ``.headrace/ledger`` keeps the result
for a hundred times as long. Each process adds its published and evicted files to the ledger. After a crash, or if
another program deletes files, the ledger may be too high until the next count: files are added before they appear, and
subtracted after they are gone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import CacheError
from headrace.storage.cache.fetch_files import FETCHES, LEDGER, fetch_folder, read_reservation, write_text
from headrace.storage.cache.locks import cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.storage.cache.control_folder import OpenFolder
    from headrace.storage.cache.entry import CacheEntry
    from headrace.storage.stats import CacheStats

__all__ = [
    'LimitedFolder',
    'Present',
    'add_to_ledger',
    'count_fetches',
    'count_files',
    'drop_ledger',
    'read_ledger',
    'write_ledger',
]

CHEAP: Final = 0.002
"""Seconds that a count may take each time."""
SHARE: Final = 100
"""How long a count that is not cheap stays valid, in multiples of its duration."""
SURE: Final = 25
"""The same factor, after a scan that found nothing evictable."""


@dataclass(slots=True)
class Present:
    """An entry with files on disk."""

    limited: LimitedFolder
    entry: CacheEntry
    size: int = 0
    used: float = 0.0
    """Seconds since the epoch."""

    def next_use(self, of_entry: Callable[[CacheEntry], float]) -> float:
        """The time at which any stream of its folder needs it next."""
        entries = (other.found.get(self.entry.key) for other in self.limited.others)
        return min(of_entry(self.entry), *(of_entry(entry) for entry in entries if entry is not None), math.inf)


@dataclass(slots=True, eq=False)
class LimitedFolder:
    """One cache folder under a limit."""

    folder: Path
    find: Callable[[str], CacheEntry | None]
    """The entry of a file, by its name in the folder; None for other files."""
    stats: CacheStats
    other_files: set[str] = field(default_factory=set[str])
    """Files that count but are never evicted, such as index.json."""
    present: list[Present] = field(default_factory=list[Present])
    """The entries that the last count of this process found."""
    counted_at: float = -math.inf
    """The time of that count, by ``time.monotonic``."""
    cost: float = 0.0
    """Seconds that it took; 0 before the first."""
    found: dict[str, CacheEntry] = field(default_factory=dict[str, 'CacheEntry'])
    """Results of ``find`` from the last count, since ``find`` may have to build an entry."""
    others: list[LimitedFolder] = field(default_factory=list['LimitedFolder'])
    """The same folder for other streams, whose entries have other numbers; counts set only their ``found``."""

    def entry_of(self, name: str) -> CacheEntry | None:
        """As ``find``, but reuses the entries of the last count."""
        return self.found.get(name) or self.find(name)

    def is_counted(self, *, surely: bool) -> bool:
        """Whether the last count is recent enough to pick a victim, or (`surely`) to conclude there is none."""
        return time.monotonic() < self.counted_at + _good_for(self.cost, SURE if surely else SHARE)

    def fixed(self) -> int:
        """Bytes that are never evicted."""
        total = 0
        for name in self.other_files:
            with contextlib.suppress(OSError):
                total += (self.folder / name).stat().st_size
        return total


def count_files(limited: LimitedFolder) -> tuple[int, float]:
    """Count a folder's shards, and note them in ``limited.present``.

    Returns:
        Bytes, and the seconds of the count: at most twice those of the count before.
    """
    begin = time.monotonic()
    present: dict[str, Present] = {}
    found: dict[str, CacheEntry] = {}
    folders = ['']
    while folders:
        prefix = folders.pop()
        try:
            items = os.scandir(limited.folder / prefix)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with items:
            for item in items:
                name = prefix + item.name
                if item.is_dir(follow_symlinks=False):
                    if name != FETCHES:
                        folders.append(f'{name}/')
                    continue
                entry = limited.entry_of(name)
                if entry is None:
                    continue
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found[entry.key if entry.key == name else name] = entry  # so that there is one copy of it
                there = present.get(entry.key)
                if there is None:
                    there = present[entry.key] = Present(limited, entry)
                there.size += info.st_size
                there.used = max(there.used, info.st_atime, info.st_mtime)
    limited.found, limited.present = found, list(present.values())
    for other in limited.others:
        other.found = {name: entry for name in present if (entry := other.entry_of(name)) is not None}
    now = time.monotonic()
    # A count that waited for a processor must not stay valid for a hundred times that wait.
    limited.cost = min(now - begin, 2 * limited.cost or math.inf)
    limited.counted_at = now
    return sum(item.size for item in limited.present), limited.cost


def _good_for(seconds: float, times: float) -> float:
    return 0.0 if seconds < CHEAP else times * seconds


def count_fetches(folder: Path) -> tuple[int, list[Path]]:
    """Bytes that fetches in progress have reserved or written, and their lock files."""
    sizes: dict[str, int] = {}
    locks: list[Path] = []
    with contextlib.suppress(FileNotFoundError, PermissionError), fetch_folder(folder).opened(only_read=True) as state:
        for item in state.names():
            name, _, rest = item.partition('.')
            if name == LEDGER:
                continue
            size = sizes.setdefault(name, 0)
            with contextlib.suppress(FileNotFoundError):
                info = state.stat(item)
                if not stat.S_ISREG(info.st_mode):
                    continue
                if rest == 'lock':
                    locks.append(state.path / item)
                else:
                    sizes[name] = size + info.st_size
        return sum(max(size, read_reservation(state, f'{name}.lock')) for name, size in sizes.items()), locks
    return 0, []


def _read(state: OpenFolder) -> tuple[int, float] | None:
    """The bytes in a ledger, and the end of their validity; None without valid text.

    Raises:
        FileNotFoundError: there is none.
    """
    try:
        record = json.loads(state.read(LEDGER, 1024))
        return int(record['bytes']), float(record['until'])
    except FileNotFoundError:
        raise
    except (OSError, CacheError, ValueError, KeyError, TypeError):
        return None


def read_ledger(folder: Path) -> int | None:
    """Bytes of a folder's shards, if a recent count exists. Needs the folder's lock."""
    try:
        with fetch_folder(folder).opened(only_read=True) as state:
            record = _read(state)
    except OSError:
        return None
    if record is None:
        return None
    size, until = record
    # The far future is a clock that was set back.
    return size if 0 <= until - time.time() < 3600 and size >= 0 else None


def write_ledger(folder: Path, size: int, seconds: float) -> None:
    """Keep a count, unless its seconds show that counting again is cheap. Needs the folder's lock."""
    if seconds >= CHEAP:
        _replace(folder, size, time.time() + min(_good_for(seconds, SHARE), 1800.0))
    else:
        drop_ledger(folder)


def add_to_ledger(folder: Path, change: int) -> None:
    """Note that bytes are about to come, or have gone. Needs the folder's lock."""
    try:
        with fetch_folder(folder).opened(only_read=True) as state:
            record = _read(state)
    except FileNotFoundError:
        return
    except OSError:
        record = None
    if record is None:
        drop_ledger(folder)
    else:
        _replace(folder, max(0, record[0] + change), record[1])


def _replace(folder: Path, size: int, until: float) -> None:
    try:
        with fetch_folder(folder).opened(make=True) as state:
            handle = state.open_file(LEDGER, os.O_WRONLY | os.O_CREAT)
            try:
                # A process killed in here leaves an invalid ledger: then the next one counts.
                write_text(handle, json.dumps({'bytes': size, 'until': until}))
            finally:
                os.close(handle)
    except OSError:  # a full disk, another user's file: count each time
        drop_ledger(folder)


def drop_ledger(folder: Path) -> None:
    """Have the folder counted anew. Needs its lock."""
    try:
        with fetch_folder(folder).opened() as state:
            state.delete(LEDGER)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise cannot_write(folder, error) from error
