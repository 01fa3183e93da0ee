"""The algorithms of compressed shard files. Each decompresses in pieces of bounded size."""

from __future__ import annotations

import bz2
import gzip
import os
import re
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.errors import ConfigError, MissingDependencyError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = [
    'ALGORITHMS',
    'CHUNK',
    'Brotli',
    'Bzip2',
    'Compression',
    'Gzip',
    'Snappy',
    'Zstandard',
    'damaged',
    'register_compression',
]

CHUNK: Final = 1 << 18
"""Bytes read and written at a time."""
_ZSTD_FEED: Final = 1 << 10
"""Compressed bytes given to Zstandard at a time. 4 of them can mean 128 KiB, and its output has no limit."""
_ZSTD_THREADS: Final = min(4, os.cpu_count() or 1)


class Compression(ABC):
    """One algorithm at one level.

    Args:
        level: one of ``levels``; None for the algorithm's default.

    Raises:
        ConfigError: the level is not one of them.
    """

    extension: ClassVar[str]
    """The file name's ending, which is also the algorithm's name. `register_compression` sets it."""
    levels: ClassVar[list[int]] = []
    """The levels to choose from; empty if there is only one."""
    default_level: ClassVar[int | None] = None
    begin = 0
    """Offset of the compressed data that `stream` reads last: a file may hold several, one after another."""

    def __init__(self, level: int | None = None) -> None:
        chosen = self.default_level if level is None else level
        if level is not None and level not in self.levels:
            known = f'{self.levels[0]} to {self.levels[-1]}' if self.levels else 'none'
            raise ConfigError(
                f'`{self.extension}:{level}` is not a supported compression algorithm: levels of {self.extension} are '
                f'{known}.'
            )
        self.level = chosen

    @abstractmethod
    def compress(self, data: bytes) -> bytes:
        """The compressed file of ``data``.

        Raises:
            MissingDependencyError: the algorithm's package is not installed.
        """

    def decompress(self, data: bytes) -> bytes:
        """The decompressed content. For trusted data only: a small file can hold gigabytes (``unpack_file``).

        Raises:
            ShardError: ``data`` is not a complete compressed file.
            MissingDependencyError: the algorithm's package is not installed.
        """
        errors = self.errors()
        try:
            return b''.join(self.stream(iter([data])))
        except errors as error:
            raise damaged('the data', self.extension, str(error)) from error

    @abstractmethod
    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The decompressed pieces of a compressed file, each of bounded size.

        Raises:
            ShardError: the file ends too early, or something follows it.
        """

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions of the algorithm's package for damaged data."""

    def announced_size(self, head: bytes) -> int | None:
        """Size of the content in bytes, as the first bytes of a file announce it; None if they do not.

        An algorithm that decompresses a whole file at once needs it: the size is checked before memory is allocated.

        Raises:
            ShardError: the file does not begin with its size, as it should.
        """
        del head
        return None


def damaged(what: str, algorithm: str, reason: str) -> ShardError:
    """The error for a damaged file."""
    return ShardError(f'{what} is not a complete {algorithm} file: {reason or "damaged data"}.')


def _truncated(algorithm: str) -> ShardError:
    return damaged('the data', algorithm, 'it ends too early')


class Brotli(Compression):
    """Brotli, of the package Brotli."""

    extension, levels, default_level = 'br', list(range(12)), 11

    def compress(self, data: bytes) -> bytes:
        """See ``Compression.compress``."""
        return _optional('brotli').compress(data, quality=self.level)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        decoder = _optional('brotli').Decompressor()
        if not hasattr(decoder, 'can_accept_more_data'):
            raise MissingDependencyError(
                "Brotli before 1.2 cannot limit the memory that a damaged file takes: pip install -U 'brotli>=1.2'"
            )
        for chunk in chunks:
            yield decoder.process(chunk, output_buffer_limit=CHUNK)
            while not decoder.can_accept_more_data():
                yield decoder.process(b'', output_buffer_limit=CHUNK)
        while not decoder.is_finished():
            # All input is taken in, but what it stands for may still wait for room.
            piece = decoder.process(b'', output_buffer_limit=CHUNK)
            if not piece:
                raise _truncated('br')
            yield piece

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return (_optional('brotli').error,)


class Bzip2(Compression):
    """bzip2, of the standard library."""

    extension, levels, default_level = 'bz2', list(range(1, 10)), 9

    def compress(self, data: bytes) -> bytes:
        """See ``Compression.compress``."""
        return bz2.compress(data, self.level or 9)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        decoder: bz2.BZ2Decompressor | None = bz2.BZ2Decompressor()
        end = 0
        for chunk in chunks:
            rest = chunk
            end += len(chunk)
            while rest:
                decoder = decoder or bz2.BZ2Decompressor()
                yield decoder.decompress(rest, CHUNK)
                while not decoder.needs_input and not decoder.eof:
                    yield decoder.decompress(b'', CHUNK)
                rest = b''
                if decoder.eof:
                    rest, decoder = decoder.unused_data, None
                    self.begin = end - len(rest)
        if decoder is not None:
            raise _truncated('bz2')

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return OSError, ValueError, EOFError


class Gzip(Compression):
    """gzip, of the standard library. The time in its header is 0, so equal content gives equal bytes."""

    extension, levels, default_level = 'gz', list(range(10)), 9

    def compress(self, data: bytes) -> bytes:
        """See ``Compression.compress``."""
        level = self.level
        assert level is not None
        return gzip.compress(data, level, mtime=0)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        decoder: Any = zlib.decompressobj(16 + zlib.MAX_WBITS)
        end = 0
        for chunk in chunks:
            rest = chunk
            end += len(chunk)
            while rest:
                decoder = decoder or zlib.decompressobj(16 + zlib.MAX_WBITS)
                yield decoder.decompress(rest, CHUNK)
                rest = decoder.unconsumed_tail
                if decoder.eof:
                    rest, decoder = decoder.unused_data, None
                    self.begin = end - len(rest)
            if decoder is not None:
                # All input is taken in, but what it stands for may still wait for room.
                while piece := decoder.decompress(b'', CHUNK):
                    yield piece
                if decoder.eof:
                    decoder, self.begin = None, end
        if decoder is not None:
            raise _truncated('gz')

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return (zlib.error,)


class Snappy(Compression):
    """Snappy in its raw block format, of the package python-snappy. A file is decompressed in memory."""

    extension, levels, default_level = 'snappy', [], None

    def compress(self, data: bytes) -> bytes:
        """See ``Compression.compress``."""
        return _optional('snappy').compress(data)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``; here one piece. ``unpack_file`` has checked its announced size."""
        yield _optional('snappy').decompress(b''.join(chunks))

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return (_optional('snappy').UncompressError,)

    def announced_size(self, head: bytes) -> int:
        """See ``Compression.announced_size``; a little-endian number in groups of 7 bits."""
        size = 0
        for at, byte in enumerate(head[:5]):
            size |= (byte & 0x7F) << (7 * at)
            if byte < 0x80:
                return size
        raise damaged('the data', 'snappy', 'it does not begin with its size')


class Zstandard(Compression):
    """Zstandard, of the package zstandard."""

    extension, levels, default_level = 'zstd', list(range(1, 23)), 3

    def compress(self, data: bytes) -> bytes:
        """See ``Compression.compress``."""
        import zstandard

        # The bytes are the same for any number of threads from 1.
        return zstandard.ZstdCompressor(level=self.level or 3, threads=_ZSTD_THREADS).compress(data)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        import zstandard

        context = zstandard.ZstdDecompressor()
        decoder: Any = context.decompressobj()
        end = 0
        for chunk in chunks:
            for at in range(0, len(chunk), _ZSTD_FEED):
                rest = chunk[at : at + _ZSTD_FEED]
                end += len(rest)
                while rest:
                    decoder = decoder or context.decompressobj()
                    yield decoder.decompress(rest)
                    rest = b''
                    if decoder.eof:
                        rest, decoder = decoder.unused_data, None
                        self.begin = end - len(rest)
        if decoder is not None:
            raise _truncated('zstd')

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        import zstandard

        return (zstandard.ZstdError,)


ALGORITHMS: Final[dict[str, type[Compression]]] = {
    algorithm.extension: algorithm for algorithm in (Brotli, Bzip2, Gzip, Snappy, Zstandard)
}
"""By name; `register_compression` adds others."""


def register_compression(name: str, algorithm: type[Compression]) -> None:
    """Register an algorithm that compresses and decompresses shards.

    Call it where your module is imported, and import that module in the script that makes the dataset. Workers import
    the script, so they know the algorithm too, whatever their start method. An index holds the name: keep it.

    Args:
        name: lower-case letters and digits; it also ends the names of the files.
        algorithm: a class whose instances have one level each; see `Compression`.

    Raises:
        ConfigError: the name is taken or malformed, or the class has another `extension`.
    """
    if not re.fullmatch(r'[a-z][a-z0-9]{0,15}', name, re.ASCII):
        raise ConfigError(
            f'The name of a compression is a letter and at most 15 more lower-case letters and digits, but got '
            f'{name[:80]!r}. A level is no part of it: list the levels in the class.'
        )
    if not hasattr(algorithm, 'extension'):
        algorithm.extension = name
    taken = ALGORITHMS.get(name, algorithm)
    known, new = (f'{one.__module__}.{one.__qualname__}' for one in (taken, algorithm))
    if known != new:
        raise ConfigError(
            f'A compression is registered once, but {name!r} is that of {known} already, and is now given {new}. '
            f'Choose another name.'
        )
    if algorithm.extension != name:
        raise ConfigError(
            f'A compression is registered under its `extension`, but {new} has {algorithm.extension!r} and is given '
            f'the name {name!r}. Leave `extension` out.'
        )
    ALGORITHMS[name] = algorithm


def _optional(name: str) -> ModuleType:
    try:
        if name == 'brotli':
            import brotli

            return brotli
        import snappy
    except ImportError as error:
        raise MissingDependencyError(
            f"This shard is compressed with {name}, which is not installed: pip install 'headrace[compression]'"
        ) from error
    else:
        return snappy
