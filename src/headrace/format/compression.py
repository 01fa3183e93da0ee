"""Compressed shard files: whole-file streams of Brotli, bzip2, gzip, Snappy (raw block) or Zstandard.

A name is an algorithm with an optional level: ``br:0..11``, ``bz2:1..9``, ``gz:0..9``, ``snappy``, ``zstd:1..22``.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final

import zstandard

from headrace.errors import ConfigError, MissingDependencyError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

__all__ = [
    'Brotli',
    'Bzip2',
    'Compression',
    'Gzip',
    'Snappy',
    'Zstandard',
    'compress',
    'decompress',
    'get_compression_extension',
    'get_compressions',
    'is_compression',
    'unpack_file',
]

_CHUNK: Final = 1 << 18
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
            raise _damaged('the data', self.extension, str(error)) from error

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


def _damaged(what: str, algorithm: str, reason: str) -> ShardError:
    return ShardError(f'{what} is not a complete {algorithm} file: {reason or "damaged data"}. Fetch it again.')


def _truncated(algorithm: str) -> ShardError:
    return _damaged('the data', algorithm, 'it ends too early')


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
            yield decoder.process(chunk, output_buffer_limit=_CHUNK)
            while not decoder.can_accept_more_data():
                yield decoder.process(b'', output_buffer_limit=_CHUNK)
        while not decoder.is_finished():
            # All input is taken in, but what it stands for may still wait for room.
            piece = decoder.process(b'', output_buffer_limit=_CHUNK)
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
                yield decoder.decompress(rest, _CHUNK)
                while not decoder.needs_input and not decoder.eof:
                    yield decoder.decompress(b'', _CHUNK)
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
                yield decoder.decompress(rest, _CHUNK)
                rest = decoder.unconsumed_tail
                if decoder.eof:
                    rest, decoder = decoder.unused_data, None
            if decoder is not None:
                # All input is taken in, but what it stands for may still wait for room.
                while piece := decoder.decompress(b'', _CHUNK):
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


_ALGORITHMS: Final[dict[str, type[Compression]]] = {
    algorithm.extension: algorithm for algorithm in (Brotli, Bzip2, Gzip, Snappy, Zstandard)
}


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


def _find(algorithm: str) -> Compression:
    name, colon, level = algorithm.partition(':')
    found = _ALGORITHMS.get(name)
    if found is not None and not colon:
        return found()
    if found is not None and level.isascii() and level.isdecimal() and len(level) <= 2 and int(level) in found.levels:
        return found(int(level))
    known = ', '.join(
        f'{name}:{kind.levels[0]}..{kind.levels[-1]}' if kind.levels else name for name, kind in _ALGORITHMS.items()
    )
    raise ConfigError(
        f'{algorithm!r} is not a supported compression algorithm. Use one of {known}, with or without a level.'
    )


def get_compressions() -> set[str]:
    """Every name of an algorithm, with and without a level."""
    return {
        name for kind, algorithm in _ALGORITHMS.items() for name in (kind, *(f'{kind}:{n}' for n in algorithm.levels))
    }


def is_compression(algo: str | None) -> bool:
    """Whether there is an algorithm of this name and level; None, no compression, is none."""
    if algo is None:
        return False
    try:
        _find(algo)
    except ConfigError:
        return False
    return True


def get_compression_extension(algo: str) -> str:
    """The file name's ending, without the dot and without the level.

    Raises:
        ConfigError: no such algorithm.
    """
    return _find(algo).extension


def compress(algo: str | None, data: bytes) -> bytes:
    """The compressed file of ``data``; ``data`` itself for None.

    Raises:
        ConfigError: no such algorithm.
        TypeError: ``data`` is not bytes.
    """
    return data if algo is None else _find(algo).compress(data)


def decompress(algo: str | None, data: bytes) -> bytes:
    """What was compressed; ``data`` itself for None. Of trusted data only, see ``unpack_file``.

    Raises:
        ConfigError: no such algorithm.
        TypeError: ``data`` is not bytes.
        ShardError: ``data`` is not a complete compressed file.
    """
    return data if algo is None else _find(algo).decompress(data)


def unpack_file(algorithm: str, src: Path, dst: Path, limit: int) -> None:
    """Decompress a file of exactly ``limit`` bytes. Several members or frames are read as one.

    Never writes more than ``limit`` bytes, whatever the file holds, and needs little memory (Snappy: the file and its
    content). After an error ``dst`` may exist with a part of the content.

    Args:
        algorithm: with or without a level.
        src: the compressed file.
        dst: the file to write; replaced if it exists.
        limit: the size of the content, in bytes.

    Raises:
        ConfigError: no such algorithm.
        MissingDependencyError: the algorithm's package is not installed.
        ShardError: the file is damaged, or its content has another size.
        OSError: a file cannot be read or written.
    """
    found = _find(algorithm)
    errors = found.errors()
    written = 0
    with src.open('rb') as packed, dst.open('wb') as out:
        if isinstance(found, Snappy):
            _check_snappy_size(packed, src, limit)
        pieces = found.stream(iter(lambda: packed.read(_CHUNK), b''))
        while True:
            try:
                piece = next(pieces, None)
            except ShardError as error:
                raise ShardError(f'{src}: {error}') from None
            except errors as error:
                raise _damaged(str(src), found.extension, str(error)) from error
            if piece is None:
                break
            written += len(piece)
            if written > limit:
                raise _wrong_size(src, limit, f'more than {limit}')
            out.write(piece)
    if written != limit:
        raise _wrong_size(src, limit, str(written))


def _wrong_size(src: Path, limit: int, got: str) -> ShardError:
    return ShardError(f'The index says that {src} holds {limit} bytes, but it holds {got}. Fetch or write it again.')


def _check_snappy_size(packed: BinaryIO, src: Path, limit: int) -> None:
    """Compare the announced size, a little-endian number in groups of 7 bits, before anything is allocated."""
    head = packed.read(5)
    packed.seek(0)
    size = 0
    for at, byte in enumerate(head):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            if size != limit:
                raise _wrong_size(src, limit, str(size))
            return
    raise _damaged(str(src), 'snappy', 'it does not begin with its size')
