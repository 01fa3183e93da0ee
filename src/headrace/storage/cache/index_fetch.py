"""The fetch of the index of a cache folder: once, and again when the remote has another.

A fetched index has a note, in an extended attribute of its file. The note has the version at the remote, a digest of
the bytes, and the last time at which a process of this machine asked the remote. If the remote has another version, the
new index replaces the old one. Shards that are not provably the same are removed. The note, or that of the folder's
origin, has to prove that headrace fetched the old index. Other folders may hold the only copy of a user's data, and are
refused. A file system without such attributes costs a download of the index at each start, to compare the bytes.

At the start, each remote gets one request for the version of its index, in bounded time. A remote that does not answer
A remote that does not answer is not an error: a run whose data are all cached starts without a network, with a warning.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from headrace.errors import CacheError, DiskFullError, FormatError, HeadraceError, StreamError
from headrace.errors.display import count_text
from headrace.errors.redaction import logger_of
from headrace.storage.cache.cached_index import (
    REMOTE_MARKER,
    CachedIndex,
    check_remote,
    digest_of,
    identity_of,
    is_from,
    locked_index,
    marker_text,
)
from headrace.storage.cache.fetch_lock import FetchLock, despite_deletion, disk_errors, reclaim_fetches
from headrace.storage.cache.limit import drop_ledger
from headrace.storage.cache.locks import cannot_write, held, lock_file, locked_folders, open_to_lock
from headrace.storage.cache.mapped_file import delete_file, open_file
from headrace.storage.protocol import ObjectInfo, Store
from headrace.storage.resolve import local_path
from headrace.storage.stats import CacheCounts, CacheStats
from headrace.storage.transfer.download import Transfer, download
from headrace.storage.transfer.retry import Retry

ANSWER_TIMEOUT: Final = 3.0
"""Seconds for which a remote's answer is waited for, the time of its client's first connection included."""

_log = logger_of(__name__)

_IMPORTED: Final = time.time()

_ATTRIBUTE: Final = 'user.headrace.version'


class IndexCheck:
    """The requests of a dataset's streams to their remotes when it is opened. Thread-safe."""

    def __init__(self, *, since: float | None = None) -> None:
        """Take the time, as `time.time`, from which on another process' answer is good enough; None: now."""
        self.since = time.time() if since is None else since
        self._silent = set[str]()
        self._unanswered: list[str] = []
        self._lock = threading.Lock()

    def ask(self, store: Store, name: str) -> ObjectInfo | None:
        """The index, as a store describes it; None, with a note for the warning, without an answer in time."""
        if local_path(store.url) is not None:
            return self._attempt(store, name)
        server = '/'.join(store.url.split('/', 3)[:3])
        if server in self._silent:
            self._note(store, 'its server did not answer for another stream')
            return None
        answers: list[ObjectInfo | None] = []
        # A daemon, so that a process ends while its network hangs.
        thread = threading.Thread(
            target=lambda: answers.append(self._attempt(store, name)), name='headrace-ask', daemon=True
        )
        thread.start()
        thread.join(ANSWER_TIMEOUT)
        if not answers:
            self._silent.add(server)
            self._note(store, f'no answer within {ANSWER_TIMEOUT:g} s')
            return None
        return answers[0]

    def warn(self) -> None:
        """Log one warning about all remotes that gave no answer."""
        with self._lock:
            unanswered, self._unanswered = self._unanswered, []
        if unanswered:
            _log.warning(
                'Could not ask %s whether the data have changed; continuing with the cached indexes. The first: %s',
                count_text(len(unanswered), 'remote'),
                unanswered[0],
            )

    def _attempt(self, store: Store, name: str) -> ObjectInfo | None:
        try:
            return store.head(name)
        except Exception as error:  # a client may raise anything, and the cached index is as good as before
            self.unanswered(store, error)
            return None

    def unanswered(self, store: Store, error: Exception) -> None:
        """Note for the warning why the index of a store could not be compared."""
        is_ours = isinstance(error, HeadraceError)
        self._note(store, f'{type(error).__name__}: {error}' if is_ours else repr(error))

    def _note(self, store: Store, why: str) -> None:
        with self._lock:
            self._unanswered.append(f'{store.url}: {why}')


def process_start() -> float:
    """When this process began, in seconds of `time.time`; where the system does not say, when headrace was imported.

    A pause between the readings of both clocks makes it earlier, never later: ranks that start together share one
    answer. So the latest of some readings is the best.
    """
    try:
        ticks = int(Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19])
        booted = max(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) for _ in range(3))
        return booted + ticks / os.sysconf('SC_CLK_TCK')
    except (AttributeError, OSError, ValueError, IndexError):  # no Linux
        return _IMPORTED


class IndexReader(Protocol):
    """Reads an index, and keeps the last one that it could read."""

    def read(self, path: Path) -> None:
        """Read the index at a path; a FormatError if the file is not what it should be."""
        ...

    def unproven(self, cached: Path) -> Iterable[str]:
        """Names of the files, of a cached index and of the one that was read last, whose content may differ."""
        ...


@dataclass(frozen=True, slots=True)
class _Note:
    """Which version of the remote's index a file is."""

    digest: str  # Of the file's bytes.
    version: str  # As the store names it; empty if it did not say.
    asked: float  # When, by `time.time`.


@dataclass(frozen=True, slots=True)
class _Fetched:
    """An index that was fetched, before it replaces the cached one."""

    target: Path
    note: _Note
    has_changed: bool  # Whether the cached one is known to be another.
    is_cache: bool  # Whether headrace provably fetched the cached one.


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFetch:
    """One fetch of an index from a store, by one process of the machine."""

    index: CachedIndex
    store: Store
    reader: IndexReader
    check: IndexCheck  # Asks the store whether a cached index is still its own.
    refuses_changes: bool = False  # Raise if it is not, instead of taking the new one.
    expects_changes: bool = False  # Note a change that removes nothing at level INFO.
    retry: Retry
    stats: CacheStats  # Counts what is transferred.

    def run(self) -> None:
        """Bring the index of the folder up to date with the store, and read it.

        StreamError: the folder is the cache of another remote, or may hold other data; or the index has changed, and
        changes are refused.
        """
        with contextlib.suppress(CacheError, DiskFullError):  # the folder may be read-only, and have all
            reclaim_fetches(self.index.folder)
        with disk_errors(self.index.folder, None, keep_packed=False):
            self._look_for_changes()
        if self._read():
            return
        with disk_errors(self.index.folder, None, keep_packed=False):
            despite_deletion(self.index.folder, self.index.path.name, self._replace)

    def _read(self) -> bool:
        """Read an index that is there; False if there is none, or none that is valid."""
        path = self.index.path
        while True:
            before = identity_of(path)
            is_valid = self._is_valid()
            # After that: the marker of a remote is published before its index.
            check_remote(self.index.folder, self.store.url)
            if not is_valid or before is None:
                return False
            digest = digest_of(path)
            if digest and before == identity_of(path):
                self.index.was_read(before, digest)
                return True

    def _is_valid(self) -> bool:
        handle = open_file(str(self.index.folder), self.index.path.name)
        if handle is None:
            return False
        os.close(handle)
        try:
            self.reader.read(self.index.path)
        except (FormatError, OSError):
            return False
        return True

    def _look_for_changes(self) -> None:
        """Bring an index that is there up to date with the remote.

        No request is made if another process has just done so. A comparison that fails is a warning: the cached index
        is as good as before.
        """
        path, check = self.index.path, self.check
        if identity_of(path) is None:
            return
        check_remote(self.index.folder, self.store.url)
        with self._one_asks():
            note = _read_note(path)
            if note is not None and check.since <= note.asked <= time.time():
                return
            begin = time.time()
            answer = check.ask(self.store, path.name)
            if answer is None:
                return
            if note is not None and note.digest != digest_of(path):
                note = None  # it is of other bytes
            if note is not None and note.version == _version(answer):
                _write_note(path, replace(note, asked=begin))
                return
            has_changed = note is not None and bool(note.version)
            try:
                with self._lock() as lock:
                    fetched = self._fetch(lock, answer, begin)
                    has_changed = has_changed or fetched.has_changed
                    self._take(fetched, lock)
            except (OSError, CacheError) as error:
                if has_changed:
                    raise
                check.unanswered(self.store, error)

    def _replace(self) -> None:
        """Fetch the index, unless another process has just done so, and delete the shards that may be of another."""
        with self._lock() as lock:
            if not self._read():
                self._take(self._fetch(lock), lock)

    def _lock(self) -> FetchLock:
        reclaim_fetches(self.index.folder)
        return FetchLock(self.index.folder, self.index.path.name, patience=self.retry.longest_silence)

    def _fetch(self, lock: FetchLock, answer: ObjectInfo | None = None, begin: float | None = None) -> _Fetched:
        """Download the index and read it. `asked`, `begin`: the store's answer about it, if known, and its time."""
        path = self.index.path
        target = lock.temporary(0, 'raw')
        etag = self._download(target, lock)
        old, cached = _read_note(path), digest_of(path)
        if answer is None and old is not None:
            cached = old.digest  # from before the damage
        is_known = answer is not None or old is not None
        if begin is None:
            begin = time.time()
            answer = self.check.ask(self.store, path.name)
        # A store that does not say what was read is believed if the size is right.
        is_same = answer is not None and (answer.etag == etag if etag else answer.size == target.stat().st_size)
        version = _version(answer) if answer is not None and is_same else ''
        note = _Note(digest_of(target), version, begin)
        if not note.digest:
            raise FileNotFoundError(errno.ENOENT, 'It was deleted', str(target))
        _write_note(target, note)
        has_changed = is_known and cached != note.digest
        is_cache = old is not None and old.digest == cached
        if old is not None and is_cache:  # a note of other bytes says nothing
            has_changed = has_changed or bool(old.version and version and old.version != version)
        return _Fetched(target, note, has_changed, is_cache or is_from(self.index.folder, self.store.url))

    def _download(self, target: Path, lock: FetchLock) -> str:
        """Download the index and read it, again if it is bad; returns its version, as `Store.get` names it."""
        versions: list[str] = []

        def attempt() -> None:
            name, how = self.index.path.name, Transfer(urgent=True)
            with lock.create(target) as out:
                download(self.store, name, out, self.retry, how=how, stats=self.stats, on_version=versions.append)

        for pause in (*self.retry.pauses, None):  # its owner may be writing it
            attempt()
            try:
                self.reader.read(target)
            except FormatError:
                if pause is None:
                    raise
                self.stats.add(CacheCounts(retries=1))
                self.retry.sleep(pause)
            else:
                break
        return versions[-1]

    def _take(self, fetched: _Fetched, lock: FetchLock) -> None:
        """Make the fetched file the folder's index.

        StreamError: it has changed, and changes are refused; or nothing proves that the folder's files are a cache.
        """
        path, folder, url = self.index.path, self.index.folder, self.store.url
        target, note, has_changed = fetched.target, fetched.note, fetched.has_changed
        if has_changed and not fetched.is_cache and not self._is_valid():
            has_changed = False  # damaged, as by a power failure: no other dataset, and nothing to compare with
        if has_changed and not fetched.is_cache:
            raise StreamError(
                f'{path} is another index than that of {url}, and headrace did not fetch it. `local` holds '
                f'another dataset, or an old cache of another program. Nothing was removed. Name another `local`, or '
                f'empty that folder if its files are not needed.'
            )
        if has_changed and self.refuses_changes:
            raise StreamError(
                f'The data at {url} have changed since they were cached in {folder}, and '
                f"`on_changed_data` is 'refuse'. Name another `local`, remove that folder, or set it to 'refresh'."
            )
        if not has_changed and digest_of(path) == note.digest:
            _write_note(path, note)
            return
        self.index.was_read(identity_of(target), note.digest)  # it keeps its identity under its final name
        made = [(target, path)]
        # A right marker stays the file that it is: others may have it locked.
        if not is_from(folder, url):
            marker = lock.temporary(1, 'raw')
            with lock.create(marker) as out:
                out.write(marker_text(url).encode())
            made.append((marker, folder / REMOTE_MARKER))
        if not has_changed:
            with locked_index(path):
                lock.publish(made)
            self.stats.add(CacheCounts(shards_fetched=1))
            return
        with locked_index(path), locked_folders([folder]):
            removed = self._remove(self.reader.unproven(path))
            lock.publish(made)
        self.stats.add(CacheCounts(shards_fetched=1))
        _log.log(
            logging.INFO if self.expects_changes and not removed else logging.WARNING,
            'The data at %s have changed since they were cached in %s. Removed %s that may differ.',
            url,
            folder,
            count_text(removed, 'cached file'),
        )

    def _remove(self, names: Iterable[str]) -> int:
        removed = 0
        for name in names:
            try:
                removed += bool(delete_file(self.index.folder, name))
            except IsADirectoryError:  # noqa: PERF203 - no file of ours
                continue
            except OSError as error:
                raise cannot_write(self.index.folder / name, error) from error
        drop_ledger(self.index.folder)
        return removed

    @contextlib.contextmanager
    def _one_asks(self) -> Generator[None]:
        """Keep other processes from asking. A folder without a marker of its remote has no lock: each process asks."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, CacheError):  # without locks, each process asks
                handle = open_to_lock(self.index.folder / REMOTE_MARKER)
                stack.enter_context(held(handle))
                lock_file(handle, self.index.folder / REMOTE_MARKER)
            yield


def index_change(index: CachedIndex, store: Store) -> str:
    """Says that a store has another index now than the folder; empty if it has the same, or none can be told."""
    note = _read_note(index.path)
    try:
        version = _version(store.head(index.path.name))
    except Exception:  # it only explains another error
        return ''
    if note is None or not note.version or note.version == version:
        return ''
    return (
        f'The data have been replaced since this run began: its index is of version {note.version!r} (size and name), '
        f'that in the store of {version!r}. Start the run again.'
    )


def _version(info: ObjectInfo) -> str:
    return f'{info.size} {info.version or info.etag}'


def _read_note(path: Path) -> _Note | None:
    try:
        content = json.loads(os.getxattr(path, _ATTRIBUTE))
        return _Note(str(content['digest']), str(content['version']), float(content['asked']))
    except (AttributeError, OSError, ValueError, KeyError, TypeError):  # the first where Python has no such function
        return None


def _write_note(path: Path, note: _Note) -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.setxattr(path, _ATTRIBUTE, json.dumps(asdict(note)).encode(), follow_symlinks=False)
