"""Verification of a whole dataset: shard by shard, in several processes, and again from where it was ended."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pickletools
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, cast

import numpy as np
from typing_extensions import Self

from headrace.convert.stored_dataset import INDEX, PATIENT, folder_of, open_stored, raw_files, with_stored_values
from headrace.errors import (
    AccessDeniedError,
    ConfigError,
    FormatError,
    HeadraceError,
    MissingDependencyError,
    ObjectNotFoundError,
    StorageError,
)
from headrace.errors.display import count_text, printable
from headrace.errors.redaction import redact, without_credentials
from headrace.format import ShardInfo, ShardTable, open_shard
from headrace.format.encodings.registry import is_mds_encoding_safe
from headrace.storage import ObjectInfo, Store, StoreOptions, open_store

_BLOCK_BYTES: Final = 4 << 20
_BLOCK_ROWS: Final = 1024
_COLUMN_KEYS: Final = ('column_names', 'column_encodings')


@dataclass(frozen=True)
class BadShard:
    """A shard that did not pass."""

    shard: int
    """Its number in the index."""
    file: str
    """The name of its data file, without compression."""
    check: Literal['missing', 'size', 'checksum', 'unpack', 'offsets', 'columns', 'samples', 'unreadable']
    """The check that failed; 'unreadable': the store failed, so nothing is known of the shard."""
    reason: str
    """The error."""

    def __str__(self) -> str:
        return printable(f'shard {self.shard} ({self.file}): {self.check}: {self.reason}')

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def check_shard(store: Store, number: int, info: ShardInfo) -> BadShard | None:
    """Read all files of a shard, compressed and raw ones, and check everything; None if all is right."""
    checking = 'size'

    def step(name: str) -> None:
        nonlocal checking
        checking = name

    try:
        for is_compressed in _variants(store, info):
            buffers = raw_files(store, info, PATIENT, is_compressed=is_compressed, step=step)
            step('offsets')
            _check_content(info, buffers, step)
    except (MissingDependencyError, MemoryError):
        raise
    except ObjectNotFoundError as error:
        checking, reason = 'missing', str(error)
    except StorageError as error:
        checking, reason = 'unreadable', str(error)
    except (HeadraceError, OSError) as error:
        reason = str(error)
    except Exception as error:  # encodings of others raise any
        reason = f'{type(error).__name__}: {error}'
    else:
        return None
    file = info.name
    return BadShard(number, file, cast('Any', checking), redact(reason.removeprefix(f'{file}: ')))


def _variants(store: Store, info: ShardInfo) -> list[bool]:
    """Whether to read compressed files: both ways in a folder that has both."""
    if all(file.zip is None for file in info.files):
        return [False]
    folder = folder_of(store)
    if folder is None:
        return [True]
    raw = all((folder / file.raw.basename).exists() for file in info.files)
    compressed = all((folder / file.zip.basename).exists() for file in info.files if file.zip is not None)
    return [True, False] if raw and compressed else [not raw]


def _check_content(info: ShardInfo, buffers: list[memoryview], step: Callable[[str], None]) -> None:
    readable = with_stored_values(info, is_mds_encoding_safe)  # columns that would run code are bytes
    reader = open_shard(readable, buffers, source=info.name)
    if info.format == 'mds':
        step('columns')
        _check_header(info, buffers[0])
    step('samples')
    pickles = [name for name, encoding in info.schema.columns.items() if encoding == 'pkl']
    for rows in _blocks(info):
        batch = readable.schema.allocate(len(rows))
        reader.gather(rows, np.arange(len(rows)), batch)
        for name in pickles:
            _check_pickles(name, rows, batch.columns[name])


def _blocks(info: ShardInfo) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Runs of rows that take little memory when they are decoded."""
    rows = _BLOCK_BYTES * info.samples // max(1, info.files[0].raw.bytes)
    rows = min(max(1, rows), _BLOCK_ROWS)
    return (np.arange(first, min(first + rows, info.samples)) for first in range(0, info.samples, rows))


def _check_header(info: ShardInfo, data: memoryview) -> None:
    """Compare the columns that an MDS file names itself with those of the index."""
    begin, end = 8 + 4 * info.samples, int.from_bytes(data[4:8], 'little')
    try:
        header = json.loads(bytes(data[begin:end]))
    except ValueError:
        return  # no reader needs it, and other writers may leave it out
    config = info.schema.config()
    if isinstance(header, dict) and all(key in header for key in _COLUMN_KEYS):
        for key in _COLUMN_KEYS:
            if header[key] != config[key]:
                raise FormatError(f'the index gives the {key} {config[key]!r}, but the file {header[key]!r:.500}')


def _check_pickles(name: str, rows: np.ndarray[Any, Any], values: Any) -> None:
    """Check that values are whole pickles, without making any object."""
    for row, value in zip(rows.tolist(), values, strict=True):
        data = value if isinstance(value, bytes) else value.tobytes()
        try:
            end = 0
            for _, _, position in pickletools.genops(data):
                end = (position or 0) + 1
        except Exception as error:  # pickletools raises errors of many classes
            raise FormatError(f'sample {row}, column {name!r}: not a pickle: {error}') from None
        if end != len(data):
            raise FormatError(f'sample {row}, column {name!r}: a pickle of {end} bytes in a value of {len(data)}')


_TITLE: Final = 'shards that passed headrace verify'


class Journal:
    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text(encoding='ascii') if path.exists() else ''
            if _TITLE.startswith(text):  # the process was killed at once
                text = ''
            if text and not text.startswith(_TITLE):
                raise ConfigError(f'--state names a new file, or one of `headrace verify`; but {path} is another file.')
            self._file = open(path, 'a' if text else 'w', encoding='ascii')  # noqa: SIM115 - until `__exit__`
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f'--state {path} cannot be used: {error}. Name another file.') from error
        whole, _, torn = text.rpartition('\n')
        self.passed = set(whole.split('\n')[1:])  # Digests of shards
        if torn or not text:
            self._file.write('\n' if torn else f'{_TITLE}\n')
            self._file.flush()

    def add(self, digest: str) -> None:
        """Note a shard; it stays noted if the process is killed."""
        self._file.write(f'{digest}\n')
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()


def shard_digest(place: str, info: ShardInfo, objects: Mapping[str, ObjectInfo]) -> str:
    """The digest of a shard's root, without credentials, its entry, and its files as `objects` lists them."""
    stored = [(name, entry.size, entry.etag) for name in info.file_names if (entry := objects.get(name)) is not None]
    text = json.dumps([place, info.entry(), stored], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


_AHEAD: Final = 4  # shards that wait for each process
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`."""

    url: str
    shards: int
    """Shards of the index."""
    samples: int
    """Samples of the index, erased ones among them."""
    erased: int
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
            'erased': self.erased,
            'passed_before': self.passed_before,
            'unknown_files': self.unknown_files,
            'bad': [each.to_json() for each in self.bad],
        }

    def __str__(self) -> str:
        before = f' ({self.passed_before:,} of them by the state file)' if self.passed_before else ''
        lines = [f'bad {each}' for each in self.bad]
        if self.unknown_files:
            lines.append(f'{count_text(self.unknown_files, "other file")} in the folder, not named by the index.')
        how = 'have the right sizes' if self.is_fast else 'are right'
        good = self.shards - len(self.bad)
        samples = (
            f'{count_text(self.samples, "sample")} in all{f", {self.erased:,} of them erased" if self.erased else ""}'
        )
        lines.append(
            f'{good:,} of {count_text(self.shards, "shard")} of {printable(redact(self.url))}, with {samples}, '
            f'{how}{before}.'
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
        jobs: processes. By default one for each CPU, 8 at most.
        state: a file that notes the shards that have passed. A later call with the same file passes over them.
        options: how to reach the store.
        progress: called with the number of finished shards, and of all.

    Raises:
        ConfigError: an argument breaks a rule.
        FileNotFoundError: the index does not exist.
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
            for number, problems in check((n, shards[n]) for n in todo):
                if problems is not None:
                    bad.append(problems)
                elif journal is not None:
                    journal.add(digests[number])
                advance()
    return VerifyReport(
        url=without_credentials(os.fspath(url)),
        shards=len(shards),
        samples=int(shards.samples.sum()),
        erased=shards.num_erased,
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
        return PATIENT.call(f'Listing {store.url}', lambda: {info.key: info for info in store.list('')})
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
                size = _size(store, stored.basename, objects)
            except StorageError as error:
                yield BadShard(number, info.name, 'unreadable', str(error))
                break
            if size != stored.bytes:
                reason = f'{stored.basename} has {size} bytes, the index gives {stored.bytes}.'
                reason = f'There is no {stored.basename}.' if size is None else reason
                yield BadShard(number, info.name, 'missing' if size is None else 'size', reason)
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
        yield lambda shards: ((number, check_shard(store, number, info)) for number, info in shards)
        return
    # A forked process knows encodings that the caller has registered.
    context = multiprocessing.get_context('fork' if sys.platform == 'linux' else None)
    reader, writer = context.Pipe(duplex=False)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _begin_worker, (reader, writer, store))
    workers = set[BaseProcess]()
    try:
        started = pool.submit(os.getpid)  # forks all processes
        workers |= set(multiprocessing.active_children()) - others
        started.result()
        yield lambda shards: _in_order_of_ends(pool, shards, _AHEAD * count)
    except BrokenProcessPool as error:
        for worker in workers:
            worker.kill()  # the pool sends SIGTERM and waits, perhaps for a process that did not get to its defaults
        raise StorageError(
            'A process that checked shards was killed, perhaps because memory was short. Use fewer `jobs` (-j), and '
            '`state` (--state) to continue.'
        ) from error
    finally:
        writer.close()  # ends the processes, whatever they do
        reader.close()
        pool.shutdown(cancel_futures=True)


_store_of_worker: list[Store] = []  # the store of a worker process, one for all its shards: another would connect again


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
    return check_shard(_store_of_worker[0], number, info)


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
