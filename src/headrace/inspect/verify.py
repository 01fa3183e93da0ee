"""Verification of a whole dataset: shard by shard, in several processes, and again from where it was ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from headrace.convert.stored_dataset import INDEX, PATIENT, folder_of, open_stored
from headrace.display import printable
from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError
from headrace.format import ShardInfo, ShardTable
from headrace.inspect.journal import Journal, shard_digest
from headrace.inspect.shard_check import BadShard, check_shard
from headrace.redaction import redact, without_credentials
from headrace.storage import ObjectInfo, Store, StoreOptions, open_store

__all__ = ['VerifyReport', 'verify']

_AHEAD: Final = 4  # shards that wait for each process
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`."""

    url: str
    shards: int
    """Shards of the index."""
    samples: int
    """Samples of the index."""
    passed_before: int
    """Shards that the state file names, which were not read again."""
    bad: tuple[BadShard, ...]
    """Shards that did not pass, by number."""
    is_fast: bool
    """Whether only sizes were checked."""
    unknown_files: int
    """Files below the dataset's root that the index does not name; headrace reads none of them."""

    @property
    def damaged(self) -> tuple[BadShard, ...]:
        """The shards that are bad for certain."""
        return tuple(each for each in self.bad if each.check != 'unreadable')

    @property
    def is_good(self) -> bool:
        """Whether every shard passed."""
        return not self.bad

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            'url': self.url,
            'ok': self.is_good,
            'fast': self.is_fast,
            'shards': self.shards,
            'samples': self.samples,
            'passed_before': self.passed_before,
            'unknown_files': self.unknown_files,
            'bad': [each.to_json() for each in self.bad],
        }

    def __str__(self) -> str:
        before = f' ({self.passed_before:,} of them by the state file)' if self.passed_before else ''
        lines = [f'bad {each}' for each in self.bad]
        if self.unknown_files:
            lines.append(f'{self.unknown_files:,} other files are there, which the index does not name.')
        how = 'have the right sizes' if self.is_fast else 'are right'
        good = self.shards - len(self.bad)
        lines.append(
            f'{good:,} of {self.shards:,} shards of {printable(redact(self.url))}, with {self.samples:,} samples in '
            f'all, {how}{before}.'
        )
        return '\n'.join(lines)


def verify(
    url: str | os.PathLike[str],
    *,
    fast: bool = False,
    jobs: int | None = None,
    state: str | os.PathLike[str] | None = None,
    options: StoreOptions | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every shard of a dataset: sizes, all checksums of the index, unpacking, offsets, and every sample.

    A shard is fetched to a file without a name, in the system's folder for temporary files, and is gone afterwards.
    A local folder is read in place. Pickles are checked without making their objects.

    Args:
        url: a folder, or a URL of a store.
        fast: check the existence and the sizes of the stored files only.
        jobs: processes. None: one for each CPU, 8 at most.
        state: a file that notes the shards that have passed. A later call with the same file passes over them.
        options: how to reach the store.
        progress: called with the number of finished shards, and of all.

    Raises:
        ConfigError: an argument breaks a rule.
        FileNotFoundError: there is no index.
        FormatError: the index breaks a rule.
        OSError: the store cannot be reached, or refuses, or a process was killed.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f'`jobs` must be a number of processes from 1, but is {jobs}.')
    if state is not None and fast:
        raise ConfigError('`state` notes shards that have passed in full: leave it out with `fast`.')
    count = 1 if fast else jobs or min(8, os.cpu_count() or 1)
    store = open_store(url, options)
    with contextlib.ExitStack() as stack:
        # The processes are forked first, before there are threads of transfers.
        check = stack.enter_context(_checking(store, count))
        dataset = open_stored(url, options)
        shards = dataset.shards
        objects = _listing(dataset.store)
        done = 0

        def advance(count: int = 1) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, len(shards))

        if fast:
            bad = list(_check_sizes(dataset.store, shards, objects, advance))
            passed_before = 0
        else:
            journal = None if state is None else stack.enter_context(Journal(Path(state)))
            place = without_credentials(store.url)
            digests = [] if journal is None else [shard_digest(place, info, objects or {}) for info in shards]
            todo = [n for n in range(len(shards)) if journal is None or digests[n] not in journal.passed]
            passed_before = len(shards) - len(todo)
            advance(passed_before)
            bad: list[BadShard] = []
            for number, found in check((n, shards[n]) for n in todo):
                if found is not None:
                    bad.append(found)
                elif journal is not None:
                    journal.add(digests[number])
                advance()
    return VerifyReport(
        url=without_credentials(os.fspath(url)),
        shards=len(shards),
        samples=int(shards.samples.sum()),
        passed_before=passed_before,
        bad=tuple(sorted(bad, key=lambda each: each.shard)),
        is_fast=fast,
        unknown_files=sum(_is_unknown(shards, key) for key in objects or ()),
    )


def _is_unknown(shards: ShardTable, key: str) -> bool:
    is_own = key == INDEX or any(part.startswith('.headrace') for part in key.split('/'))
    return not is_own and shards.find(key) is None


def _listing(store: Store) -> dict[str, ObjectInfo] | None:
    """The store's objects by key; None if it may not be listed, or holds a link that leads nowhere."""
    try:
        return PATIENT.call(f'Listing {store.url}', lambda: {found.key: found for found in store.list('')})
    except (AccessDeniedError, ObjectNotFoundError):
        return None


def _check_sizes(
    store: Store, shards: ShardTable, objects: dict[str, ObjectInfo] | None, advance: Callable[[], None]
) -> Iterator[BadShard]:
    """The shards whose stored files are missing, or have another size than the index gives."""
    for number, info in enumerate(shards):
        for file in info.files:
            stored = file.zip or file.raw
            if file.zip and objects is not None and folder_of(store) and file.zip.basename not in objects:
                stored = file.raw  # a cache folder holds what it has unpacked
            try:
                found = _size(store, stored.basename, objects)
            except StorageError as error:
                yield BadShard(number, info.files[0].raw.basename, 'unreadable', str(error))
                break
            if found is None:
                yield BadShard(number, info.files[0].raw.basename, 'missing', f'There is no {stored.basename}.')
                break
            if found != stored.bytes:
                reason = f'{stored.basename} has {found} bytes, the index gives {stored.bytes}.'
                yield BadShard(number, info.files[0].raw.basename, 'size', reason)
                break
        advance()


def _size(store: Store, key: str, objects: dict[str, ObjectInfo] | None) -> int | None:
    if objects is not None:
        return objects[key].size if key in objects else None
    try:
        return PATIENT.call(f'Asking for {key}', lambda: store.head(key)).size
    except ObjectNotFoundError:
        return None


Checked = tuple[int, BadShard | None]
Check = Callable[[Iterator[tuple[int, ShardInfo]]], Iterator[Checked]]


@contextlib.contextmanager
def _checking(store: Store, count: int) -> Generator[Check]:
    """A function that checks shards in ``count`` processes, which end with the block and with this process."""
    if count == 1:
        yield lambda shards: ((number, check_shard(store, number, info, PATIENT)) for number, info in shards)
        return
    # A forked process knows encodings that the caller has registered.
    context = multiprocessing.get_context('fork' if sys.platform == 'linux' else None)
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, _begin_worker, (reader, writer, store))
    try:
        pool.submit(os.getpid).result()  # forks all processes
        yield lambda shards: _in_order_of_ends(pool, shards, _AHEAD * count)
    except BrokenProcessPool as error:
        raise StorageError(
            'A process that checked shards was killed, perhaps because memory was short. Use fewer `jobs` (-j), and '
            '`state` (--state) to continue.'
        ) from error
    finally:
        writer.close()  # ends the processes, whatever they do
        reader.close()
        pool.shutdown(cancel_futures=True)


_store_of_worker: list[Store] = []
"""The store of a worker process, one for all its shards: another would connect again."""


def _begin_worker(reader: Connection, writer: Connection, store: Store) -> None:
    """Keep the store, and have this process end with its parent, and by nothing else."""
    _store_of_worker[:] = [store]
    writer.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(reader,), daemon=True).start()


def _end_with_parent(reader: Connection) -> None:
    reader.poll(None)  # the end of the pipe, which the parent alone holds open
    os._exit(1)


def _check_in_worker(number: int, info: ShardInfo) -> BadShard | None:
    return check_shard(_store_of_worker[0], number, info, PATIENT)


def _in_order_of_ends(
    pool: ProcessPoolExecutor, shards: Iterator[tuple[int, ShardInfo]], most: int
) -> Iterator[Checked]:
    running = dict[Future[BadShard | None], int]()
    for number, info in shards:
        running[pool.submit(_check_in_worker, number, info)] = number
        if len(running) >= most:
            yield from _finished(running)
    while running:
        yield from _finished(running)


def _finished(running: dict[Future[BadShard | None], int]) -> Iterator[Checked]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()
