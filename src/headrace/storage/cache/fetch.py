"""The fetch of a shard: its lock, room for it, download, verification, and the final names of its files."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from headrace.errors import CacheError, ChecksumError, FormatError
from headrace.storage.cache.cached_index import CachedIndex
from headrace.storage.cache.entry import CacheEntry, CachePart, FetchRequest, FetchResult, FetchStatus
from headrace.storage.cache.fetch_lock import FetchLock, despite_deletion, disk_errors, reclaim_fetches
from headrace.storage.cache.index_fetch import index_change
from headrace.storage.cache.limit import FolderRoom
from headrace.storage.cache.locks import lock_file
from headrace.storage.cache.mapped_file import check_inside, delete_file, suspend_leases
from headrace.storage.cache.peers import PeerRequest, StreamPeers
from headrace.storage.protocol import Store
from headrace.storage.stats import CacheCounts, CacheStats
from headrace.storage.transfer.download import Transfer, download
from headrace.storage.transfer.retry import Retry

_ATTRIBUTE: Final = 'user.headrace.verified'


class PresentFiles:
    """The files of one folder, as one process knows them."""

    def __init__(self, folder: Path, *, has_store: bool, run: str | None, stats: CacheStats) -> None:
        """Touches no disk.

        `has_store`: whether a bad file can be fetched again; else it is an error. `run` names the processes that trust
        each other's fetches. Other files are verified at their first use in each process, without a store all of them;
        None: none.
        """
        self._folder, self._root = folder, str(folder)
        self._has_store, self._run, self._stats = has_store, run, stats
        self._verified = set[int | str]()

    def mark(self, path: Path) -> None:
        """Note in a file that this run has fetched and verified it, if the file system can do that."""
        if self._run is not None:
            with contextlib.suppress(AttributeError, OSError):  # the first where Python has no such function
                os.setxattr(path, _ATTRIBUTE, self._mark_of(path), follow_symlinks=False)

    def _is_marked(self, path: Path) -> bool:
        try:
            return os.getxattr(path, _ATTRIBUTE) == self._mark_of(path)
        except (AttributeError, OSError):
            return False

    def _mark_of(self, path: Path) -> bytes:
        # No time is compared with a clock: clocks are set back, and a copy may have the time of its original.
        info = path.stat()
        return f'{self._run} {info.st_ino} {info.st_size} {info.st_mtime_ns}'.encode()

    def verified(self, entry: CacheEntry) -> None:
        if self._run is not None:
            self._verified.add(_number_of(entry))

    def verify(self, entry: CacheEntry) -> bool:
        """Verify a shard at its first use, if that is wanted; False if it was bad and is now absent."""
        if self._run is None or _number_of(entry) in self._verified:
            return True
        for part in entry.parts:
            path = self._folder / part.name
            if part.verify is None:
                continue
            try:
                if not self._has_store or not self._is_marked(path):
                    part.verify(path)
            except FileNotFoundError:
                return False
            except FormatError as error:
                if not self._has_store:
                    raise ChecksumError(
                        f'{path} is not what its index says: {error} Restore the file, or pass the `remote` that '
                        f'holds it.'
                    ) from error
                self._stats.add(CacheCounts(retries=1))
                delete_file(self._folder, part.name)
                return False
        self.verified(entry)
        return True

    def require(self, entry: CacheEntry) -> None:
        """Raise unless the folder holds the compressed file of every part that is absent."""
        for part in entry.absent(self._root):
            if part.packed_name is not None and (self._folder / part.packed_name).exists():
                continue
            path = self._folder / part.name
            if not path.exists():
                raise missing(path)
            raise ChecksumError(
                f'{path} has {path.stat().st_size} bytes, the index gives {part.size}. Restore the file, or pass the '
                f'`remote` that holds it.'
            )


def _number_of(entry: CacheEntry) -> int | str:
    return entry.key if entry.id < 0 else entry.id


def missing(path: Path) -> CacheError:
    return CacheError(
        f'No `remote` provided, but local file {path} does not exist. Restore the file, or pass the `remote` that '
        f'holds it.'
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Fetcher:
    """Makes the shards of one folder present, for one process. Thread-safe."""

    folder: Path
    store: Store | None  # Where shards come from; None: only from compressed files in the folder.
    keep_packed: bool
    retry: Retry
    stats: CacheStats
    files: PresentFiles  # Learns which shards have been verified.
    index: CachedIndex  # The folder's; no shard is published beside another one.
    room: FolderRoom | None  # The room under a limit; None: there is no limit.
    peers: StreamPeers | None = None  # The caches of other nodes, which are asked before the store.
    lender: Path | None = None  # A cache folder of the same data, whose files are copied.
    _reclaimed: int = field(default=0, init=False)  # By which process; a forked one may find what one before it left.

    def fetch(self, request: FetchRequest) -> FetchResult:
        entry = request.entry
        if self.store is None and self.lender is None:
            self.files.require(entry)
        if self.room is not None:
            suspend_leases()  # a waiting thread holds no lease
        with disk_errors(self.folder, entry, keep_packed=self.keep_packed):
            return despite_deletion(self.folder, entry.key, partial(self._attempt, request))

    def _attempt(self, request: FetchRequest) -> FetchResult:
        """Fetch the absent parts of a shard, once there is room for them; one process of the machine at a time."""
        entry, room = request.entry, self.room
        self._reclaim()
        ahead = request.ahead and not request.how.urgent
        lock = FetchLock(self.folder, entry.key, ahead=ahead, patience=self.retry.longest_silence)
        try:
            if not lock.acquire(wait=request.wait):
                return FetchResult(FetchStatus.ELSEWHERE)
            with lock:
                absent = entry.absent(str(self.folder))
                if not absent:
                    return FetchResult(FetchStatus.PRESENT)
                if room is not None:
                    refusal = room.reserve(request, absent, lock, keep_packed=self.keep_packed)
                    if refusal is not None:
                        return refusal
                self.index.require_same()
                made = _FileMaker(self, entry.key, request.how, lock).make(absent)
                return self._publish(request, made, lock)
        finally:
            self.stats.add_wait(lock.waited)

    def _reclaim(self) -> None:
        """Remove what ended processes left, once per process; until then it is harmless."""
        if self._reclaimed != os.getpid():
            reclaim_fetches(self.folder)
            self._reclaimed = os.getpid()

    def _publish(self, request: FetchRequest, made: list[tuple[Path, Path]], lock: FetchLock) -> FetchResult:
        """Give the verified files of a shard, (temporary, final), their final names.

        Under a limit, a reader's fetch returns the first part, too. It is locked before it gets its final name, so that
        it is not evicted before it is mapped.
        """
        entry, room, handle = request.entry, self.room, None
        for temporary, _ in made:
            self.files.mark(temporary)
        if room is None:
            with self.index.unchanged():
                lock.publish(made)
        else:
            size = sum(temporary.stat().st_size for temporary, _ in made)
            refusal = room.reserve_more(request, size, lock)
            if refusal is not None:
                return refusal
            handle = None if request.ahead else _pinned(self.folder / entry.key, made)
            try:
                with self.index.unchanged(), room.publishing(size):
                    lock.publish(made)
            except BaseException:
                if handle is not None:
                    os.close(handle)
                raise
        self.files.verified(entry)
        self.stats.add(CacheCounts(shards_fetched=1))
        return FetchResult(FetchStatus.PRESENT, size=entry.size, handle=handle)


def _pinned(final: Path, made: list[tuple[Path, Path]]) -> int | None:
    """Open and lock a file under its temporary name, if it is among those made, (temporary, final).

    So it is not evicted between its final name and its mapping.
    """
    for temporary, target in made:
        if target == final:
            handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                lock_file(handle, temporary, shared=True)
            except BaseException:
                os.close(handle)
                raise
            return handle
    return None


@dataclass(frozen=True, slots=True)
class _FileMaker:
    """Makes the files of a shard, under temporary names: download, verify, unpack, verify."""

    fetcher: Fetcher
    shard: str
    how: Transfer
    lock: FetchLock

    def make(self, parts: list[CachePart]) -> list[tuple[Path, Path]]:
        made: list[tuple[Path, Path]] = []
        for number, part in enumerate(parts):
            raw = self.lock.temporary(number, 'raw')
            if self._borrowed(part, raw) or self._from_peers(part, raw):
                pass
            elif part.packed_name is None:
                self._twice(part, part.name, part.size, raw, lambda part=part, raw=raw: _verify(part, raw))
            else:
                packed = self.lock.temporary(number, 'packed')
                self._make_packed(part, raw, packed)
                if packed.exists():
                    if self.fetcher.keep_packed:
                        made.append((packed, self.fetcher.folder / part.packed_name))
                    else:
                        self.lock.delete(packed)
            made.append((raw, self.fetcher.folder / part.name))
        return made

    def _borrowed(self, part: CachePart, raw: Path) -> bool:
        lender = self.fetcher.lender
        if lender is None or not part.is_in(str(lender)):
            return False
        try:
            with (lender / part.name).open('rb') as file, self.lock.create(raw) as out:
                shutil.copyfileobj(file, out)
            _verify_copy(part, raw)
        except (OSError, FormatError):  # evicted meanwhile, or damaged
            return False
        return True

    def _from_peers(self, part: CachePart, raw: Path) -> bool:
        """Fetch a file unpacked from another node's cache, unless this folder has it packed."""
        peers, folder = self.fetcher.peers, self.fetcher.folder
        if peers is None or (part.packed_name is not None and (folder / part.packed_name).exists()):
            return False
        create, check = partial(self.lock.create, raw), partial(_verify_copy, part, raw)
        size = peers.peers.fetch(PeerRequest(peers.stream, self.shard, part, create, check))
        self.fetcher.stats.add(CacheCounts(bytes_from_peers=size))
        return size > 0

    def _download(self, key: str, target: Path, size: int | None) -> None:
        if self.fetcher.store is None:
            raise missing(self.fetcher.folder / key)
        with self.lock.create(target) as out:
            download(
                self.fetcher.store, key, out, self.fetcher.retry, size=size, how=self.how, stats=self.fetcher.stats
            )

    def _make_packed(self, part: CachePart, raw: Path, packed: Path) -> None:
        assert part.packed_name is not None
        local = self.fetcher.folder / part.packed_name
        if local.exists():
            check_inside(str(self.fetcher.folder), part.packed_name)
            try:
                self._unpack(part, local, raw)
            except FormatError as error:
                if self.fetcher.store is None:
                    raise self._explained(part, error, times=1) from error
                # A good one is in the store.
                self.fetcher.stats.add(CacheCounts(retries=1))
                delete_file(self.fetcher.folder, part.packed_name)
            else:
                if self.fetcher.store is not None and not self.fetcher.keep_packed:
                    delete_file(self.fetcher.folder, part.packed_name)
                return
        self._twice(part, part.packed_name, part.packed_size, packed, lambda: self._unpack(part, packed, raw))

    def _unpack(self, part: CachePart, packed: Path, raw: Path) -> None:
        assert part.unpack is not None
        size = packed.stat().st_size
        if part.packed_size is not None and size != part.packed_size:
            raise ChecksumError(f'The compressed file has {size} bytes, the index gives {part.packed_size}.')
        if part.verify_packed:
            part.verify_packed(packed)
        self.lock.delete(raw)
        begun = time.perf_counter_ns()
        part.unpack(packed, raw, part.size)
        taken = time.perf_counter_ns() - begun
        size = raw.stat().st_size
        if part.size_at is None and size != part.size:
            raise ChecksumError(f'It unpacks to {size} bytes, the index gives {part.size}.')
        _verify(part, raw)
        self.fetcher.stats.add(CacheCounts(bytes_unpacked=size, nanoseconds_unpacking=taken))

    def _twice(self, part: CachePart, key: str, size: int | None, target: Path, check: Callable[[], None]) -> None:
        """Download a file and check it. A bad one is fetched again once: the fault may lie in the transfer."""
        try:
            self._download(key, target, size)
            try:
                check()
            except FormatError:
                self.fetcher.stats.add(CacheCounts(retries=1))
                self._download(key, target, size)
                check()
        except FormatError as error:
            raise self._explained(part, error, times=2) from error

    def _explained(self, part: CachePart, error: FormatError, *, times: int) -> FormatError:
        key, final, store = part.packed_name or part.name, self.fetcher.folder / part.name, self.fetcher.store
        changed = '' if store is None else index_change(self.fetcher.index, store)
        if store is None:
            origin, fix = f'the local file {self.fetcher.folder / key}', 'Restore it, or write the dataset again.'
        elif part.size_at is not None and not isinstance(error, ChecksumError):
            # Data of another format, in the version that was indexed: the error names the value, and says what helps.
            return type(error)(f'{error} It was read from {store.url} for {final}. {changed}'.rstrip())
        else:
            origin = f'{store.url.rstrip("/")}/{key}'
            fix = changed or (
                'The object in the store is bad, or the index is of another version: write the dataset again.'
            )
        kind = type(error) if isinstance(error, ChecksumError) else ChecksumError
        return kind(
            f'{origin} is not what its index says ({"read once" if times == 1 else "fetched more than once"}, for '
            f'{final}): {error} {fix}'
        )


def _verify(part: CachePart, raw: Path) -> None:
    if part.verify:
        part.verify(raw)


def _verify_copy(part: CachePart, raw: Path) -> None:
    """Check a peer's file: its size, also if the file tells that itself, and a hash if the index has one."""
    with raw.open('rb', buffering=0) as file:
        handle = file.fileno()
        if not part.has_size(os.fstat(handle).st_size, lambda at, count: os.pread(handle, count, at)):
            raise ChecksumError(f'It has {os.fstat(handle).st_size} bytes, and says another number.')
    if part.verify_copy:
        part.verify_copy(raw)


def same_folder(store: Store | None, folder: Path) -> bool:
    """Whether a store is the cache folder itself, so that nothing needs fetching or deleting."""
    root = getattr(store, 'root', None)
    if root is None:
        return False
    with contextlib.suppress(OSError):
        return os.path.realpath(root) == os.path.realpath(folder)
    return False
