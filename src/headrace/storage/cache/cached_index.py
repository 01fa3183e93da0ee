"""The index of a cache folder: fetched once, compared with the remote's at the start, watched while shards are read.

A fetched index has a note, in an extended attribute of its file. The note has the version at the remote, a digest of
the bytes, and the last time at which a process of this machine asked the remote. If the remote has another version, the
new index replaces the old one. Shards that are not provably the same are removed. The note, or that of the folder's
origin, has to prove that headrace fetched the old index. Other folders may hold the only copy of a user's data, and are
refused. A file system without such attributes costs a download of the index at each start, to compare the bytes.

A running process may have read the old index. So it looks at index.json when it opens a shard, and before a shard that
it fetched gets its final name. With another index in the folder it stops with an error. A shard that was written before
the last look is of the index that was there; for such shards one look a second is enough.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import xxhash

from headrace.errors import CacheError, FormatError, StreamError
from headrace.redaction import logger_of
from headrace.storage.cache.disk_usage import drop_ledger
from headrace.storage.cache.locks import cannot_write, held, lock_file, locked_folders, open_to_lock
from headrace.storage.cache.mapped_file import delete_file
from headrace.storage.cache.remote_marker import ORIGIN, check_origin, is_from, note_of
from headrace.storage.transfer.download import download

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from pathlib import Path

    from headrace.storage.cache.fetch import Fetcher
    from headrace.storage.cache.fetch_lock import FetchLock
    from headrace.storage.cache.index_check import IndexCheck
    from headrace.storage.cache.presence import PresentFiles
    from headrace.storage.protocol import ObjectInfo, Store

__all__ = ['CachedIndex', 'IndexRequest']

_ATTRIBUTE: Final = 'user.headrace.version'
_BLOCK: Final = 1 << 20  # Bytes of an index that a comparison reads at once.
_LOOK_AGAIN: Final = 1.0  # Seconds between two looks at index.json for old shards.
_CLOCK_STEP: Final = 1.0  # Seconds that the time of a file may be behind the clock.

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """A caller's checks of an index."""

    validate: Callable[[Path], None] | None = None
    """Raises FormatError if a file is not what it should be; else takes it as the index that is read from now on."""
    check: IndexCheck | None = None
    """Asks the remote whether a cached index is still its own; None: nobody asks."""
    refuse: bool = False
    """Raise where it is not, in place of taking the new one."""
    unproven: Callable[[Path], Iterable[str]] | None = None
    """Names of the files, of an index that was cached and of the one validated last, whose content may differ."""


@dataclass(frozen=True, slots=True)
class _Note:
    """Which version of the remote's index a file is."""

    digest: str
    """Of the file's bytes."""
    version: str
    """As the store names it; empty if it did not say."""
    asked: float
    """When, by `time.time`."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """An index that was fetched, before it replaces the cached one."""

    target: Path
    note: _Note
    has_changed: bool
    """Whether the cached one is known to be another."""
    is_cache: bool
    """Whether headrace provably fetched the cached one."""


class CachedIndex:
    """The index of one folder, as one process knows it."""

    def __init__(self, folder: Path, store: Store | None) -> None:
        """Touches no disk and no network; without a store there is nothing to compare an index with."""
        self._folder, self._store = folder, store
        self._path: Path | None = None
        self._read: tuple[tuple[int, int], str] | None = None  # identity and digest of the index that was read
        self._looked = 0.0  # the last time that `require_same` found it in the folder, by `time.time`

    def read(self, path: Path, request: IndexRequest, files: PresentFiles) -> bool:
        """Read an index that is there; False if there is none, or none that is valid."""
        while True:
            before = _identity(path)
            is_valid = files.is_valid(path, request.validate)
            if self._store is None:
                return is_valid
            # After that: whoever publishes an index has published the note of its origin.
            check_origin(self._folder, self._store.url)
            if not is_valid or before is None:
                return False
            digest = _digest(path)
            if digest and before == _identity(path):
                self._path, self._read = path, (before, digest)
                return True

    def look_for_changes(
        self, path: Path, request: IndexRequest, lock: Callable[[], FetchLock], fetcher: Fetcher
    ) -> None:
        """Have the folder hold the index that the remote has now.

        It asks nobody if another process has just done so. A comparison that fails is a warning: the cached index is as
        good as before.
        """
        check, store = request.check, self._store
        if check is None or store is None or _identity(path) is None:
            return
        check_origin(self._folder, store.url)
        with self._one_asks():
            note = _read_note(path)
            if note is not None and check.since <= note.asked <= time.time():
                return
            begin = time.time()
            found = check.ask(store, path.name)
            if found is None:
                return
            if note is not None and note.digest != _digest(path):
                note = None  # it is of other bytes
            if note is not None and note.version == _version(found):
                _write_note(path, replace(note, asked=begin))
                return
            has_changed = note is not None and bool(note.version)
            try:
                with lock() as fetch_lock:
                    fetched = self._fetch(path, request, fetch_lock, fetcher, asked=found, begin=begin)
                    has_changed = has_changed or fetched.has_changed
                    self._take(fetched, path, request, fetch_lock, fetcher)
            except (OSError, CacheError) as error:
                if has_changed:
                    raise
                check.unanswered(store, error)

    def replace(self, path: Path, request: IndexRequest, lock: FetchLock, fetcher: Fetcher) -> None:
        """Fetch the index, and delete the shards that may be of another. Needs the lock of its fetch.

        Raises:
            StreamError: it has changed, and the request refuses that; or nothing proves that the files are a cache.
        """
        self._take(self._fetch(path, request, lock, fetcher), path, request, lock, fetcher)

    def _fetch(
        self,
        path: Path,
        request: IndexRequest,
        lock: FetchLock,
        fetcher: Fetcher,
        *,
        asked: ObjectInfo | None = None,
        begin: float | None = None,
    ) -> _Fetched:
        assert self._store is not None
        target = lock.temporary(0, 'raw')
        etag = self._download(path.name, target, request, lock, fetcher)
        old, cached = _read_note(path), _digest(path)
        if asked is None and old is not None:
            cached = old.digest  # from before the damage
        is_known = asked is not None or old is not None
        if request.check is not None and asked is None:
            begin = time.time()
            asked = request.check.ask(self._store, path.name)
        # A store that does not say what was read is believed if the size is right.
        is_same = asked is not None and (asked.etag == etag if etag else asked.size == target.stat().st_size)
        version = _version(asked) if asked is not None and is_same else ''
        note = _Note(_digest(target), version, begin or 0.0)
        if not note.digest:
            raise FileNotFoundError(errno.ENOENT, 'It was deleted', str(target))
        if begin is not None:
            _write_note(target, note)
        has_changed = is_known and cached != note.digest
        is_cache = old is not None and old.digest == cached
        if old is not None and is_cache:  # a note of other bytes says nothing
            has_changed = has_changed or bool(old.version and version and old.version != version)
        return _Fetched(target, note, has_changed, is_cache or is_from(self._folder, self._store.url))

    def _download(self, name: str, target: Path, request: IndexRequest, lock: FetchLock, fetcher: Fetcher) -> str:
        """Download an index, again if it is bad; returns its version, as `Store.get` names it."""
        versions: list[str] = []

        def attempt() -> None:
            assert self._store is not None
            how, stats = fetcher.how, fetcher.stats
            with lock.create(target) as out:
                download(self._store, name, out, fetcher.retry, how=how, stats=stats, on_version=versions.append)

        attempt()
        if request.validate is not None:
            try:
                request.validate(target)
            except FormatError:
                fetcher.stats.add(retries=1)
                attempt()
                request.validate(target)
        return versions[-1]

    def _take(self, fetched: _Fetched, path: Path, request: IndexRequest, lock: FetchLock, fetcher: Fetcher) -> None:
        """Make the fetched file the folder's index."""
        assert self._store is not None
        target, note, has_changed = fetched.target, fetched.note, fetched.has_changed
        if has_changed and not fetched.is_cache and not _is_valid(path, request):
            has_changed = False  # damaged, as by a power failure: no other dataset, and nothing to compare with
        if has_changed and not fetched.is_cache:
            raise StreamError(
                f'{path} is another index than that of {self._store.url}, and headrace did not fetch it. `local` holds '
                f'another dataset, or an old cache of another program. Nothing was removed. Name another `local`, or '
                f'empty that folder if nobody needs its files.'
            )
        if has_changed and request.refuse:
            raise StreamError(
                f'The data at {self._store.url} have changed since they were cached in {self._folder}, and '
                f"`on_changed_data` is 'refuse'. Name another `local`, remove that folder, or set it to 'refresh'."
            )
        if not has_changed and _digest(path) == note.digest:
            _write_note(path, note)
            return
        identity = _identity(target)  # which it keeps under its final name
        self._path, self._read = path, None if identity is None else (identity, note.digest)
        made = [(target, path)]
        # A note that is right stays the file that it is: others may have it locked.
        if not is_from(self._folder, self._store.url):
            origin = lock.temporary(1, 'raw')
            with lock.create(origin) as out:
                out.write(note_of(self._store.url).encode())
            made.append((origin, self._folder / ORIGIN))
        if not has_changed:
            with _locked(path):
                lock.publish(made)
            fetcher.stats.add(fetches=1)
            return
        with _locked(path), locked_folders([self._folder]):
            removed = self._remove(request.unproven(path) if request.unproven else ())
            lock.publish(made)
        fetcher.stats.add(fetches=1)
        _log.warning(
            'The data at %s have changed since they were cached in %s. Removed %d cached files that may differ.',
            self._store.url,
            self._folder,
            removed,
        )

    def _remove(self, names: Iterable[str]) -> int:
        removed = 0
        for name in names:
            try:
                removed += bool(delete_file(self._folder, name))
            except IsADirectoryError:  # noqa: PERF203 - no file of ours
                continue
            except OSError as error:
                raise cannot_write(self._folder / name, error) from error
        drop_ledger(self._folder)
        return removed

    @contextlib.contextmanager
    def _one_asks(self) -> Generator[None]:
        """Keep other processes from asking. A folder without the note of its remote has no lock: each process asks."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, CacheError):  # without locks, each process asks
                handle = open_to_lock(self._folder / ORIGIN)
                stack.enter_context(held(handle))
                lock_file(handle, self._folder / ORIGIN)
            yield

    def require_same(self, written: float = math.inf) -> None:
        """See that the folder's index is still the one that was read. One that was deleted is no other.

        Args:
            written: when the shard that is about to be read was written, in seconds of `time.time`.

        Raises:
            CacheError: it is another.
        """
        if self._read is None or self._path is None:
            return
        now = time.time()
        if written + _CLOCK_STEP < self._looked <= now < self._looked + _LOOK_AGAIN:
            return
        identity = _identity(self._path)
        if identity is None or identity == self._read[0]:
            self._looked = now
            return
        digest = _digest(self._path)
        if digest in {'', self._read[1]}:
            self._read, self._looked = (identity, self._read[1]), now
            return
        raise CacheError(
            f'{self._path} is no longer the index that this process has read: the data have changed, and another '
            f'process has refreshed the cache. Start this one again. Runs on different versions of the data need '
            f'different `local` folders.'
        )

    @contextlib.contextmanager
    def unchanged(self) -> Generator[None]:
        """Publish a shard inside the block: nobody replaces the index meanwhile.

        Raises:
            CacheError: it has been replaced.
        """
        if self._read is None or self._path is None:
            yield
            return
        # Of one that was deleted, every shard that is fetched anew is of the index that was read.
        with _locked(self._path, shared=True):
            self.require_same()
            yield


@contextlib.contextmanager
def _locked(path: Path, *, shared: bool = False) -> Generator[None]:
    """Lock an index: exclusively to replace it, shared to publish a shard of it. One that is absent needs no lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) if shared else open_to_lock(path)
    except OSError:
        yield
        return
    with held(handle):
        lock_file(handle, path, shared=shared)
        yield


def _is_valid(path: Path, request: IndexRequest) -> bool:
    try:
        if request.validate is not None:
            request.validate(path)
    except (FormatError, OSError):
        return False
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of a file, other than that of a replacement. FUSE may give a file a new inode at each look."""
    try:
        info = os.stat(path)  # noqa: PTH116 - a Path costs more than the stat
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size


def _digest(path: Path) -> str:
    """Of a file's bytes; empty if it cannot be read."""
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK))
    try:
        with open(path, 'rb', buffering=0) as file:
            while count := file.readinto(block):
                digest.update(block[:count])
    except OSError:
        return ''
    return digest.hexdigest()


def _version(info: ObjectInfo) -> str:
    return f'{info.size} {info.version or info.etag}'


def _read_note(path: Path) -> _Note | None:
    try:
        found = json.loads(os.getxattr(path, _ATTRIBUTE))
        return _Note(str(found['digest']), str(found['version']), float(found['asked']))
    except (AttributeError, OSError, ValueError, KeyError, TypeError):  # the first where Python has no such function
        return None


def _write_note(path: Path, note: _Note) -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.setxattr(path, _ATTRIBUTE, json.dumps(asdict(note)).encode(), follow_symlinks=False)
