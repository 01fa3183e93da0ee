"""Reads byte ranges of many objects: concurrently, with retries, in bounded memory.

Formats read the footers and heads of their objects with it when they index a dataset. A parser moves a `Window` over an
object from the beginning to the end: over bytes in memory, an object behind ranged requests, or a compressed stream.
Memory is bounded by the largest piece that the parser takes.
"""

from __future__ import annotations

import io
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Protocol, TypeVar

from headrace.errors import ChecksumError, ConfigError, FormatError, ShardError
from headrace.format.compression import ALGORITHMS, Gzip
from headrace.sources.protocol import Part
from headrace.storage import ObjectInfo, Retry, Store
from headrace.storage.transfer.download import GeneratorPool
from headrace.storage.transfer.retry import BrokenTransferError

REQUESTS: Final = 16  # Concurrent requests of one index.
WINDOW: Final = 64 << 20  # Bytes that may be read ahead of the caller.
_PIECE: Final = 4 << 20  # Bytes of a whole object that are read at one time.
_PART: Final = 32 << 20  # Bytes of a part of records, about.
PATIENT: Final = Retry(patience=30.0)  # Retries of a request: also for half a minute of an outage.


@dataclass(frozen=True, slots=True)
class ByteRange:
    key: str  # The object, relative to the store's root.
    offset: int
    size: int  # Number of bytes. The object has them.
    etag: str = ''  # The version of the object, as `ObjectInfo.etag` names it; empty: any.


def read_ranges(
    store: Store, ranges: Iterable[ByteRange], *, retry: Retry = PATIENT, requests: int = REQUESTS, window: int = WINDOW
) -> Iterator[bytes]:
    """The bytes of each range, in the order of the ranges, which are taken as they are needed.

    `window`: bytes that are read ahead of the caller, at most, or one range. ChecksumError: an object is shorter than
    its range, or was replaced.
    """
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    ahead = 0
    # The threads end before the caller's process forks: a fork copies the locks that threads hold.
    with GeneratorPool(requests, thread_name_prefix='headrace-ranges') as pool:
        for wanted in ranges:
            while waiting and (len(waiting) >= 2 * requests or ahead + wanted.size > window):
                size, oldest = waiting.popleft()
                yield oldest.result()
                ahead -= size
            waiting.append((wanted.size, pool.submit(read_range, store, wanted, retry=retry)))
            ahead += wanted.size
        while waiting:
            yield waiting.popleft()[1].result()


def read_range(store: Store, wanted: ByteRange, *, retry: Retry = PATIENT) -> bytes:
    if not wanted.size:
        return b''
    url = f'{store.url.rstrip("/")}/{wanted.key}'

    def attempt() -> bytes:
        out = io.BytesIO()
        try:
            store.get(wanted.key, out, offset=wanted.offset, size=wanted.size, etag=wanted.etag or None)
        except BrokenTransferError as error:
            if not (error.changed and wanted.etag):
                raise
            raise ChecksumError(f'{url} was replaced after it was listed or indexed. Start again.') from error
        return out.getvalue()

    try:
        data = retry.call(f'Reading {url}', attempt)
    except ConfigError as error:
        # The store refused the range: the object is shorter, unless it is the caller who errs.
        if store.head(wanted.key).size >= wanted.offset + wanted.size:
            raise
        raise _shorter(url, wanted) from error
    if len(data) != wanted.size:
        raise _shorter(url, wanted)
    return data


def read_whole(store: Store, objects: Sequence[ObjectInfo]) -> Iterator[tuple[ObjectInfo, Iterator[bytes]]]:
    """Whole objects in pieces, which are read ahead of the caller, beyond the end of an object, too."""
    ranges = (
        ByteRange(info.key, at, min(_PIECE, info.size - at), info.etag)
        for info in objects
        for at in range(0, info.size, _PIECE)
    )
    all_pieces = read_ranges(store, ranges)
    for info in objects:
        pieces = islice(all_pieces, -(-info.size // _PIECE))
        yield info, pieces
        for _ in pieces:  # those that the caller has left
            pass


def parts_of_records(key: str, places: Iterable[tuple[int, int]], *, is_whole: bool) -> Iterator[Part]:
    """The parts of an object with records from one byte to before another; if it `is_whole`, one part of all."""
    start = stop = rows = 0
    for begin, end in places:
        if rows and end - start > _PART and not is_whole:
            yield Part(key, ((start, stop - start),), rows, stop - start)
            rows = 0
        start, stop = start if rows else begin, end
        rows += 1
    if rows:
        yield Part(key, () if is_whole else ((start, stop - start),), rows, stop - start)


def _shorter(url: str, wanted: ByteRange) -> ChecksumError:
    return ChecksumError(
        f'{url} has fewer than the {wanted.offset + wanted.size} bytes that its listing or index gives: it was '
        f'replaced meanwhile, or is damaged. Start again, or restore it.'
    )


T = TypeVar('T')
R = TypeVar('R')

_LEAST: Final = 1 << 16
_MOST: Final = 1 << 22
MAX_UNPACKED: Final = (1 << 32) - 1
"""Bytes of content of a compressed object: it becomes one shard, whose offsets are 32-bit numbers."""
_MAGICS: Final = re.compile(
    rb'(?P<gz>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)|(?P<bz2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))'
    rb'|(?P<xz>\xfd7zXZ\0)|(?P<lz4>\x04\x22\x4d\x18)|(?P<zip>PK\x03\x04)'
)
_CUT: Final = {'gz': b'\x1f\x8b', 'zstd': b'\x28\xb5\x2f\xfd', 'bz2': b'BZh'}  # Where such data begin.
_UNPACK: Final = {
    'gz': 'gunzip < FILE > NEW',
    'zstd': 'zstd --decompress < FILE > NEW',
    'bz2': 'bunzip2 < FILE > NEW',
    'xz': 'xz --decompress < FILE > NEW',
    'lz4': 'lz4 --decompress < FILE > NEW',
    'zip': 'unzip -p FILE > NEW',
}
_NOT_READ: Final = ('xz', 'lz4', 'zip')
_NO_DATA: Final = re.compile(
    rb'(?P<lfs>version https://git-lfs\.)|(?P<html>(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)[\s>])', re.IGNORECASE
)
_ENDINGS: Final = {'.gz': 'gz', '.tgz': 'gz', '.zst': 'zstd', '.zstd': 'zstd', '.bz2': 'bz2'}


class Window(Protocol):
    """Bytes from ascending offsets."""

    def take(self, offset: int, size: int) -> memoryview | bytes:
        """The bytes from an offset, at least that of the last call; fewer than ``size`` at the end only.

        FormatError: the object ends before ``offset``.
        """
        ...


class MemoryWindow:
    def __init__(self, data: memoryview, where: str) -> None:
        self._data, self._where = data, where

    def take(self, offset: int, size: int) -> memoryview:
        if offset > len(self._data):
            raise _ends(self._where, len(self._data), offset)
        return self._data[offset : offset + size]


class RangedWindow:
    """An object behind ranged requests. Large gaps are not read. Here an offset may be before the last one, too.

    A request reads 64 KiB to 4 MiB: more after a window of which everything was used.
    """

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store, self._info = store, info
        self._data, self._start, self._step = b'', 0, _LEAST

    def take(self, offset: int, size: int) -> memoryview:
        info = self._info
        if offset > info.size:
            raise _ends(info.key, info.size, offset)
        stop = min(offset + size, info.size)
        end = self._start + len(self._data)
        if stop > end or offset < self._start:
            gap = offset - end
            kept = self._data[offset - self._start :] if self._start <= offset < end else b''
            self._step = min(self._step * 2, _MOST) if self._data and gap < self._step else _LEAST
            first = offset + len(kept)
            length = min(max(stop - first, self._step), info.size - first)
            self._data, self._start = kept + _read(self._store, info, first, length), offset
        at = offset - self._start
        return memoryview(self._data)[at : at + stop - offset]


class StreamWindow:
    """Chunks that arrive one after another."""

    def __init__(self, chunks: Iterator[bytes], where: str) -> None:
        self._chunks, self._where = chunks, where
        self._data, self._start = memoryview(b''), 0

    def take(self, offset: int, size: int) -> memoryview:
        end = self._start + len(self._data)
        parts = [self._data[offset - self._start :]]
        while end < offset + size and (chunk := next(self._chunks, None)) is not None:
            end += len(chunk)
            if end > offset:  # an empty view would keep the chunk
                parts.append(memoryview(chunk)[offset - end :])
        if end < offset:
            raise _ends(self._where, end, offset)
        self._data, self._start = parts[0] if len(parts) == 1 else memoryview(b''.join(parts)), offset
        return self._data[:size]


def _ends(where: str, size: int, offset: int) -> FormatError:
    return FormatError(
        f'{where} ends at byte {size}, but its headers say that data follow to {offset}. Restore or write it again.'
    )


def _read(store: Store, info: ObjectInfo, offset: int, size: int) -> bytes:
    return read_range(store, ByteRange(info.key, offset, size, info.etag))


def stream_object(store: Store, info: ObjectInfo) -> Iterator[bytes]:
    """An object in pieces of 4 MiB, each read when it is wanted."""
    for offset in range(0, info.size, _MOST):
        yield _read(store, info, offset, min(_MOST, info.size - offset))


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of `work` for each item, in order, from several threads."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), REQUESTS), 'headrace-index') as threads:
        futures = [threads.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def algorithm_of(key: str) -> str | None:
    """The compression that an object's name ends with: 'gz', 'zstd', 'bz2', or None."""
    return next((name for ending, name in _ENDINGS.items() if key.lower().endswith(ending)), None)


def compression_of(first: bytes, key: str) -> str | None:
    """The compression of an object, as its first bytes tell: 'gz', 'zstd', 'bz2', or None.

    Its name tells only where it ends within them. FormatError: it has a compression that is not read.
    """
    refuse_no_data(first, key)
    match, named = _MAGICS.match(first), algorithm_of(key)
    is_cut = len(first) < 4 and named and _CUT[named].startswith(first)
    algorithm = match.lastgroup if match else named if is_cut else None
    if algorithm in _NOT_READ:
        raise FormatError(
            f'{key} is a file of {algorithm}, and compressed files are read if they are of gzip, zstd or bzip2. Unpack '
            f'it, such as with `{_UNPACK[algorithm]}`, or leave it out with a glob in `remote`.'
        )
    return algorithm


def refuse_no_data(first: bytes, key: str) -> None:
    """Refuse an object whose first bytes are those of a pointer of Git LFS, or of a web page."""
    match = _NO_DATA.match(first)
    if match and match.lastgroup == 'lfs':
        raise FormatError(f'{key} is a pointer of Git LFS and not the file itself. Fetch that: `git lfs pull`.')
    if match:
        raise FormatError(
            f'{key} is a web page, as servers send in place of a file that they do not give. Download it again.'
        )


def refuse_packed(first: bytes, key: str) -> None:
    """As `refuse_no_data`, and refuse a compressed file: for formats of which pieces are read."""
    refuse_no_data(first, key)
    if name := _compression(first):
        raise FormatError(
            f'{key} is a file of {name}, but its format is read in pieces. Unpack it, such as with `{_UNPACK[name]}`.'
        )


def _compression(first: bytes) -> str | None:
    match = _MAGICS.match(first)
    return match.lastgroup if match and (match.lastgroup != 'gz' or first[2:3] == b'\x08') else None


def unpacked(
    chunks: Iterator[bytes], key: str, where: str, limit: int = MAX_UNPACKED
) -> tuple[str | None, Iterator[bytes]]:
    """The compression of an object, as `compression_of`, and its content; see `unpack`."""
    first = next(chunks, b'')
    algorithm = compression_of(first, key)
    return algorithm, unpack(algorithm, chain([first], chunks), where, limit)


class _Zlib(Gzip):
    """A stream of zlib, which TFRecord has and shards have not."""

    extension = 'zlib'

    def decoder(self) -> Any:
        return zlib.decompressobj()


def unpack(algorithm: str | None, chunks: Iterator[bytes], where: str, limit: int = MAX_UNPACKED) -> Iterator[bytes]:
    """The content of a compressed object, in pieces. `algorithm`: of `compression_of`, or 'zlib', or None.

    ShardError: the object is damaged, or has more than `limit` bytes of content.
    """
    if algorithm is None:
        yield from chunks
        return
    compression = _Zlib() if algorithm == 'zlib' else ALGORITHMS[algorithm]()
    errors = compression.errors()
    total = 0
    pieces = compression.stream(chunks)
    while True:
        try:
            piece = next(pieces, None)
        except ShardError as error:
            raise ShardError(f'{where}: {error}') from None
        except errors as error:
            if 'memory' in str(error):  # zstd's
                raise ShardError(
                    f'{where} has a window that is larger than 2 GiB, the one of `zstd --long=31`, or than the memory '
                    f'that is left ({error}). Write it again with a smaller one: `zstd --decompress --long=31 --stdout '
                    f'FILE | zstd > NEW`.'
                ) from error
            raise ShardError(
                f'{where} is not a complete {algorithm} file: its data from byte {compression.begin} on are damaged '
                f'({error}). Restore or write it again.'
            ) from error
        if piece is None:
            return
        if not total and (name := _compression(piece)):
            raise FormatError(
                f'{where} was compressed twice: unpacked, it is a file of {name}. Unpack it once, such as with '
                f'`{_UNPACK[algorithm]}`.'
            )
        total += len(piece)
        if total > limit:
            raise ShardError(
                f'A compressed object holds at most {limit} bytes of content here, but {where} has more. Decompress '
                f'it, or split it into smaller objects.'
            )
        if piece:
            yield piece
