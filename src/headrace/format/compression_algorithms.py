"""The algorithms of compressed shard files: how each turns bytes into a file, and a file into bounded pieces."""

from __future__ import annotations

import bz2
import gzip
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import zstandard

from headrace.errors import ConfigError, MissingDependencyError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ['ALGORITHMS', 'CHUNK', 'Brotli', 'Bzip2', 'Compression', 'Gzip', 'Snappy', 'Zstandard', 'damaged']

CHUNK: Final = 1 << 18
"""Bytes read and written at a time."""
_ZSTD_FEED: Final = 1 << 10
"""Compressed bytes given to Zstandard at a time: 4 of them can stand for 128 KiB, and its output has no limit."""


class Compression(ABC):
    """One algorithm at one level.

    Args:
        level: one of ``levels``; None for the algorithm's default.

    Raises:
        ConfigError: the level is not one of them.
    """

    extension: ClassVar[str]
    """The file name's ending, which is also the algorithm's name."""
    levels: ClassVar[list[int]]
    """The levels there are; empty where there is no choice."""
    default_level: ClassVar[int | None]

    def __init__(self, level: int | None = None) -> None:
        chosen = self.default_level if level is None else level
        if level is not None and level not in self.levels:
            known = f'{self.levels[0]} to {self.levels[-1]}' if self.levels else 'none'
            raise ConfigError(
                f'`{self.extension}:{level}` is not a supported compression algorithm: levels of {self.extension} are '
                f'{known}.'
            )
        self.level = chosen

    def compress(self, data: bytes) -> bytes:
        """The compressed file of ``data``.

        Raises:
            TypeError: ``data`` is not bytes.
            MissingDependencyError: the algorithm's package is not installed.
        """
        return self._compress(_check_bytes(data))

    def decompress(self, data: bytes) -> bytes:
        """What was compressed. Of trusted data only: a small file can stand for gigabytes (``unpack_file``).

        Raises:
            TypeError: ``data`` is not bytes.
            ShardError: ``data`` is not a complete compressed file.
            MissingDependencyError: the algorithm's package is not installed.
        """
        errors = self.errors()
        chunk = _check_bytes(data)
        try:
            return b''.join(self.stream(iter([chunk])))
        except errors as error:
            raise damaged('the data', self.extension, str(error)) from error

    @abstractmethod
    def _compress(self, data: bytes) -> bytes: ...

    @abstractmethod
    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The decompressed pieces of a compressed file, each of bounded size.

        Raises:
            ShardError: the file ends too early, or something follows it.
        """

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """What the algorithm's package raises for damaged data."""


def _check_bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f'Compression works on bytes, but got a {type(data).__name__}. Convert it with bytes().')
    return data


def damaged(what: str, algorithm: str, reason: str) -> ShardError:
    """The error for something that should be a compressed file."""
    return ShardError(f'{what} is not a complete {algorithm} file: {reason or "damaged data"}. Fetch it again.')


def _truncated(algorithm: str) -> ShardError:
    return damaged('the data', algorithm, 'it ends too early')


class Brotli(Compression):
    """Brotli, of the package Brotli."""

    extension, levels, default_level = 'br', list(range(12)), 11

    def _compress(self, data: bytes) -> bytes:
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

    def _compress(self, data: bytes) -> bytes:
        return bz2.compress(data, self.level or 9)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        decoder: bz2.BZ2Decompressor | None = bz2.BZ2Decompressor()
        for chunk in chunks:
            rest = chunk
            while rest:
                decoder = decoder or bz2.BZ2Decompressor()
                yield decoder.decompress(rest, CHUNK)
                while not decoder.needs_input and not decoder.eof:
                    yield decoder.decompress(b'', CHUNK)
                rest = b''
                if decoder.eof:
                    rest, decoder = decoder.unused_data, None
        if decoder is not None:
            raise _truncated('bz2')

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return OSError, ValueError, EOFError


class Gzip(Compression):
    """gzip, of the standard library. The time in its header is 0, so that bytes reproduce."""

    extension, levels, default_level = 'gz', list(range(10)), 9

    def _compress(self, data: bytes) -> bytes:
        level = self.level
        assert level is not None
        return gzip.compress(data, level, mtime=0)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        decoder: Any = zlib.decompressobj(16 + zlib.MAX_WBITS)
        for chunk in chunks:
            rest = chunk
            while rest:
                decoder = decoder or zlib.decompressobj(16 + zlib.MAX_WBITS)
                yield decoder.decompress(rest, CHUNK)
                rest = decoder.unconsumed_tail
                if decoder.eof:
                    rest, decoder = decoder.unused_data, None
            if decoder is not None:
                # All input is taken in, but what it stands for may still wait for room.
                while piece := decoder.decompress(b'', CHUNK):
                    yield piece
                decoder = None if decoder.eof else decoder
        if decoder is not None:
            raise _truncated('gz')

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return (zlib.error,)


class Snappy(Compression):
    """Snappy in its raw block format, of the package python-snappy. A file is decompressed in memory."""

    extension, levels, default_level = 'snappy', [], None

    def _compress(self, data: bytes) -> bytes:
        return _optional('snappy').compress(data)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``; here one piece. Its size is announced: ``unpack_file`` checks that before."""
        yield _optional('snappy').decompress(b''.join(chunks))

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return (_optional('snappy').UncompressError,)


class Zstandard(Compression):
    """Zstandard, of the package zstandard."""

    extension, levels, default_level = 'zstd', list(range(1, 23)), 3

    def _compress(self, data: bytes) -> bytes:
        return zstandard.ZstdCompressor(level=self.level or 3).compress(data)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``."""
        context = zstandard.ZstdDecompressor()
        decoder: Any = context.decompressobj()
        for chunk in chunks:
            for at in range(0, len(chunk), _ZSTD_FEED):
                rest = chunk[at : at + _ZSTD_FEED]
                while rest:
                    decoder = decoder or context.decompressobj()
                    yield decoder.decompress(rest)
                    rest = b''
                    if decoder.eof:
                        rest, decoder = decoder.unused_data, None
        if decoder is not None:
            raise _truncated('zstd')

    def errors(self) -> tuple[type[Exception], ...]:
        """See ``Compression.errors``."""
        return (zstandard.ZstdError,)


ALGORITHMS: Final[dict[str, type[Compression]]] = {
    algorithm.extension: algorithm for algorithm in (Brotli, Bzip2, Gzip, Snappy, Zstandard)
}
"""By name."""


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
