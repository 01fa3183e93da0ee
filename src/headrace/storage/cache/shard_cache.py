"""The shard cache: a folder in which shards become present, once per machine, verified, within a limit.

A shard is *present* when its files have their final names. A rename gives them, after verification, so presence needs
no other record and survives any crash. The modules around this one:

- `entry`: the files of a shard, and which of them are there;
- `fetch`: a fetch, from its lock to the final names, and the check of old files at first use;
- `fetch_lock`: one fetch at a time; `limit`: room and eviction;
- `mapped_file`: maps and leases; `lease_cache`: leases kept between reads;
- `cached_index`: the index that the shards are of, which `index_fetch` has fetched.

Without a limit a present shard is one ``open`` and one ``mmap``: no lock, no scan, nothing written. A new shard costs a
``stat`` of the index, too; old ones share one a second. A folder without a store (local data) is never written to,
except to unpack shards of which it holds only the compressed file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.storage.cache.cached_index import REMOTE_MARKER, CachedIndex
from headrace.storage.cache.entry import CacheEntry, FetchRequest, FetchResult, FetchStatus, NextUse
from headrace.storage.cache.fetch import Fetcher, PresentFiles, same_folder
from headrace.storage.cache.fetch_lock import TRIES, deleted
from headrace.storage.cache.lease_cache import release_leases
from headrace.storage.cache.limit import CacheLimit, FolderRoom, LimitedFolder, delete_entry, evict
from headrace.storage.cache.mapped_file import Lease, close_files, map_files
from headrace.storage.cache.peers import StreamPeers
from headrace.storage.protocol import Store
from headrace.storage.stats import CacheCounts, CacheStats
from headrace.storage.transfer.download import DEFAULT, Transfer
from headrace.storage.transfer.retry import Retry

_HIT: Final = CacheCounts(cache_hits=1)


class ShardCache:
    """The shards of one stream in one folder. Thread-safe, usable after fork, picklable."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        store: Store | None = None,
        index: CachedIndex | None = None,
        limit: int | CacheLimit | None = None,
        keep_packed: bool = False,
        retry: Retry | None = None,
        entry_of: Callable[[str], CacheEntry | None] | None = None,
        verify_present: bool = False,
        stats: CacheStats | None = None,
        peers: StreamPeers | None = None,
        lender: Path | None = None,
    ) -> None:
        """Touches no disk and no network.

        `store`: None if the folder is all there is. A store whose root is the folder counts as None: nothing in it is
        ever deleted, and no limit applies to it. `index`: as `index_fetch` read it; with another one in its place no
        shard is read. `limit`: bytes that the folder may take, whichever process fetches; a `CacheLimit` counts several
        folders. `entry_of`: under a limit, the entry of a file in the folder (raw or compressed), by its name. Only
        such files count and may be evicted. None: the entries that this object was asked for. `verify_present`: verify
        files at their first use in a process, except those that this object, or a copy of it in another process, has
        fetched and verified. `peers`: other nodes' caches of the same data, which are asked before the store. Under a
        limit, shards that this node keeps for them are evicted last. `lender`: another cache folder of the same data,
        whose shards are copied rather than fetched.
        """
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - Path.resolve would follow the user's links
        self.keep_packed = keep_packed
        self.retry = retry or Retry()
        self.verify_present = verify_present
        self._run = os.urandom(8).hex()  # the same in its copies in other processes
        self.stats = stats or CacheStats()
        self._entry_of, self.peers, self._lender = entry_of, peers, lender
        self._limit = CacheLimit(limit) if isinstance(limit, int) else limit
        # They count and are never evicted.
        self._other_files = set[str]() if index is None else {index.path.name, REMOTE_MARKER}
        self.store = None if same_folder(store, self.folder) else store
        self.index = index or CachedIndex(self.folder, 'index.json')  # one that was not read is compared with nothing
        self._start()

    def _start(self) -> None:
        self._root = str(self.folder)
        self._known: dict[str, CacheEntry] = {}
        run = self._run if self.verify_present else None
        self._files = PresentFiles(self.folder, has_store=self.store is not None, run=run, stats=self.stats)
        self._limited: LimitedFolder | None = None
        self._room: FolderRoom | None = None
        if self._limit is not None and self.store is not None:
            self._limited = LimitedFolder(self.folder, self.entry_of_file, self.stats, self._other_files)
            self._limited.duty = None if self.peers is None else self.peers.duty
            self._limit.join(self._limited)
            self._room = FolderRoom(self._limit, self._limited)
        self._fetcher = Fetcher(
            folder=self.folder,
            store=self.store,
            keep_packed=self.keep_packed,
            retry=self.retry,
            stats=self.stats,
            files=self._files,
            index=self.index,
            room=self._room,
            peers=self.peers,
            lender=self._lender,
        )

    def __getstate__(self) -> dict[str, Any]:
        own = {'_root', '_known', '_files', '_limited', '_room', '_fetcher'}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def fetch(
        self,
        entry: CacheEntry,
        *,
        next_use: NextUse | None = None,
        wait: bool = True,
        wait_for_room: bool = True,
        how: Transfer = DEFAULT,
    ) -> FetchResult:
        """Make a shard present before it is needed; one process of the machine fetches.

        Args:
            entry: The shard.
            next_use: When a shard is needed next (any unit, infinite for never). Under a limit no shard is evicted
                that is needed sooner than this one, and others in the order of their need, the latest first.
                Without it, the one unused for longest goes first.
            wait: Wait for another process that fetches the shard, and, under a limit, for shards that are in use now
                but could be evicted.
            wait_for_room: If false, do not wait for the latter. A server of peers does not: who uses these shards may
                be waiting for a peer that waits for this one.
            how: Urgency and callback of its downloads.

        Returns:
            The outcome. Unless the shard is present, try again when the reader has moved on.
        """
        self._note(entry)
        while entry.absent(self._root) or not self._files.verify(entry):
            result = self._fetcher.fetch(FetchRequest(entry, next_use, wait, how))
            if result.status is not FetchStatus.BLOCKED:
                return result
            release_leases()
            if not (wait and wait_for_room):
                return result
            self.stats.add_wait(result.wait())
        return FetchResult(FetchStatus.PRESENT)

    def acquire(self, entry: CacheEntry, *, next_use: NextUse | None = None) -> Lease:
        """Make a shard present and map it.

        Under a limit, unused shards are evicted for it: first the one with the latest ``next_use``, or without that
        function the one unused for longest.
        """
        self._note(entry)
        is_limited = self._room is not None
        handle = None
        tries = 0
        while True:
            files = map_files(self._root, entry, locked=is_limited, first=handle)
            try:
                if files:
                    # Now: what is mapped stays as it is.
                    self.index.require_same(max(file.written for file in files))
                    if self._files.verify(entry):
                        if not tries:
                            self.stats.add(_HIT)
                        return Lease(entry, files, locked=is_limited)
            except BaseException:
                close_files(files)
                raise
            close_files(files)
            if tries == TRIES:
                raise deleted(self.folder, entry.key)
            result = self._fetcher.fetch(FetchRequest(entry, next_use, how=Transfer(urgent=True), ahead=False))
            handle = result.handle
            if result.status is FetchStatus.BLOCKED:
                release_leases()
                self.stats.add_wait(result.wait())
            else:
                tries += 1

    @property
    def room(self) -> float:
        """Bytes of shards that the limit allows, for all folders that it counts; inf: there is none."""
        return math.inf if self._limit is None else self._limit.room

    @property
    def fixed_size(self) -> int:
        """Bytes that count towards the limit and are never evicted, such as the index's; 0 without a limit."""
        return 0 if self._limited is None else self._limited.fixed()

    def entry_of_file(self, name: str) -> CacheEntry | None:
        """The entry of a file in the folder, raw or compressed; None for other files."""
        return self._known.get(name) if self._entry_of is None else self._entry_of(name)

    def is_present(self, entry: CacheEntry) -> bool:
        """Whether all files of a shard are there, with the right sizes."""
        return not entry.absent(self._root)

    def evict(self, entry: CacheEntry) -> bool:
        """Delete a shard; False if it stays: it is absent or in use, or no store has it."""
        if self.store is None or len(entry.absent(self._root)) == len(entry.parts):
            return False
        if self._limited is not None:
            return not isinstance(evict(self._limited.folder, entry), Path)
        return not isinstance(delete_entry(self.folder, entry), Path)

    def _note(self, entry: CacheEntry) -> None:
        """Remember the entry of a file name, if the caller gave no ``entry_of``."""
        if self._limited is None or self._entry_of is not None or entry.key in self._known:
            return
        for part in entry.parts:
            for name in (part.name, part.packed_name):
                if name is not None:
                    self._known[name] = entry
