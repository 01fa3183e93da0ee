"""Compressed shard files: whole-file streams of Brotli, bzip2, gzip, Snappy (raw block) or Zstandard.

A name is an algorithm with an optional level: ``br:0..11``, ``bz2:1..9``, ``gz:0..9``, ``snappy``, ``zstd:1..22``.
`register_compression` adds others.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, ClassVar, Final

from headrace.errors import ConfigError, MissingDependencyError, ShardError, import_optional

CHUNK: Final = 1 << 18  # bytes read and written at a time
_WINDOW: Final = 1 << 31  # Bytes of content that `zstd --long=31` refers to; a decoder keeps as many.
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
            levels = f'{self.levels[0]} to {self.levels[-1]}' if self.levels else 'none'
            raise ConfigError(
                f'`{self.extension}:{level}` is not a supported compression algorithm: levels of {self.extension} are '
                f'{levels}.'
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
    return ShardError(f'{what} is not a complete {algorithm} file: {reason or "damaged data"}.')


def _truncated(algorithm: str) -> ShardError:
    return damaged('the data', algorithm, 'it ends too early')


class Brotli(Compression):
    extension, levels, default_level = 'br', list(range(12)), 11

    def compress(self, data: bytes) -> bytes:
        return _optional('brotli').compress(data, quality=self.level)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
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
        return (_optional('brotli').error,)


class _Members(Compression):
    """An algorithm whose files may hold several members, one after another."""

    feed = CHUNK  # compressed bytes given to a decoder at a time

    @abstractmethod
    def decoder(self) -> Any:
        """An object that decompresses one member, with `eof` and `unused_data` after its end."""

    def pieces(self, decoder: Any, data: bytes) -> Iterator[bytes]:
        yield decoder.decompress(data)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        decoder = self.decoder()
        end = 0
        for chunk in chunks:
            for at in range(0, len(chunk), self.feed):
                rest = chunk[at : at + self.feed]
                end += len(rest)
                while rest:
                    decoder = decoder or self.decoder()
                    yield from self.pieces(decoder, rest)
                    rest = b''
                    if decoder.eof:
                        rest, decoder = decoder.unused_data, None
                        self.begin = end - len(rest)
        if decoder is not None:
            raise _truncated(self.extension)


class Bzip2(_Members):
    extension, levels, default_level = 'bz2', list(range(1, 10)), 9

    def compress(self, data: bytes) -> bytes:
        return bz2.compress(data, self.level or 9)

    def decoder(self) -> bz2.BZ2Decompressor:
        return bz2.BZ2Decompressor()

    def pieces(self, decoder: Any, data: bytes) -> Iterator[bytes]:
        yield decoder.decompress(data, CHUNK)
        while not decoder.needs_input and not decoder.eof:
            yield decoder.decompress(b'', CHUNK)

    def errors(self) -> tuple[type[Exception], ...]:
        return OSError, ValueError, EOFError


class Gzip(_Members):
    """gzip, of the standard library. The time in its header is 0, so equal content gives equal bytes."""

    extension, levels, default_level = 'gz', list(range(10)), 9

    def compress(self, data: bytes) -> bytes:
        level = self.level
        assert level is not None
        return gzip.compress(data, level, mtime=0)

    def decoder(self) -> Any:
        return zlib.decompressobj(16 + zlib.MAX_WBITS)

    def pieces(self, decoder: Any, data: bytes) -> Iterator[bytes]:
        while data and not decoder.eof:  # after a member, zlib may leave the next one in both of its tails
            yield decoder.decompress(data, CHUNK)
            data = decoder.unconsumed_tail
        # All input is taken in, but what it stands for may still wait for room.
        while not decoder.eof and (piece := decoder.decompress(b'', CHUNK)):
            yield piece

    def errors(self) -> tuple[type[Exception], ...]:
        return (zlib.error,)


class Snappy(Compression):
    """Snappy in its raw block format, of the package python-snappy. A file is decompressed in memory."""

    extension, levels, default_level = 'snappy', [], None

    def compress(self, data: bytes) -> bytes:
        return _optional('snappy').compress(data)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """See ``Compression.stream``; here one piece. ``unpack_file`` has checked its announced size."""
        yield _optional('snappy').decompress(b''.join(chunks))

    def errors(self) -> tuple[type[Exception], ...]:
        return (_optional('snappy').UncompressError,)

    def announced_size(self, head: bytes) -> int:
        """See ``Compression.announced_size``; a little-endian number in groups of 7 bits."""
        size = 0
        for at, byte in enumerate(head[:5]):
            size |= (byte & 0x7F) << (7 * at)
            if byte < 0x80:
                return size
        raise damaged('the data', 'snappy', 'it does not begin with its size')


class Zstandard(_Members):
    extension, levels, default_level = 'zstd', list(range(1, 23)), 3
    feed = 1 << 10  # 4 bytes can mean 128 KiB, and its output has no limit

    def compress(self, data: bytes) -> bytes:
        import zstandard

        # The bytes are the same for any number of threads from 1.
        return zstandard.ZstdCompressor(level=self.level or 3, threads=_ZSTD_THREADS).compress(data)

    def decoder(self) -> Any:
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()

    def errors(self) -> tuple[type[Exception], ...]:
        import zstandard

        return (zstandard.ZstdError,)


ALGORITHMS: Final[dict[str, type[Compression]]] = {
    algorithm.extension: algorithm for algorithm in (Brotli, Bzip2, Gzip, Snappy, Zstandard)
}
"""By name; `register_compression` adds others."""


def register_compression(name: str, algorithm: type[Compression]) -> None:
    """Register an algorithm that compresses and decompresses shards.

    Call it where your module is imported, and import that module in the script that makes the dataset. Workers import
    the script, so they know the algorithm too, with any start method. An index holds the name: keep it.

    Args:
        name: lower-case letters and digits; it also ends the names of the files.
        algorithm: a class whose instances have one level each; see `Compression`.

    Raises:
        ConfigError: the name is taken or malformed, or the class has another `extension`.
    """
    if not re.fullmatch(r'[a-z][a-z0-9]{0,15}', name, re.ASCII):
        raise ConfigError(
            f'The name of a compression is a letter and at most 15 more lower-case letters and digits, but got '
            f'{name[:80]!r}. A level is not part of it: list the levels in the class.'
        )
    if not hasattr(algorithm, 'extension'):
        algorithm.extension = name
    taken = ALGORITHMS.get(name, algorithm)
    before, new = (f'{kind.__module__}.{kind.__qualname__}' for kind in (taken, algorithm))
    if before != new:
        raise ConfigError(
            f'A compression is registered once, but {name!r} is that of {before} already, and is now given {new}. '
            f'Choose another name.'
        )
    if algorithm.extension != name:
        raise ConfigError(
            f'A compression is registered under its `extension`, but {new} has {algorithm.extension!r} and is given '
            f'the name {name!r}. Leave `extension` out.'
        )
    ALGORITHMS[name] = algorithm


def _optional(name: str) -> ModuleType:
    return import_optional(name, f'This shard is compressed with {name}', 'compression')


_HEAD: Final = 64  # first bytes of a file, which may announce the size of its content


def _find(algorithm: str) -> Compression:
    name, colon, level = algorithm.partition(':')
    compression = ALGORITHMS.get(name)
    if compression is not None and not colon:
        return compression()
    if (
        compression is not None
        and level.isascii()
        and level.isdecimal()
        and len(level) <= 2
        and int(level) in compression.levels
    ):
        return compression(int(level))
    names = ', '.join(
        f'{name}:{kind.levels[0]}..{kind.levels[-1]}' if kind.levels else name for name, kind in ALGORITHMS.items()
    )
    raise ConfigError(
        f'{algorithm!r} is not a supported compression algorithm. Use one of {names}, with or without a level.'
    )


def get_compressions() -> set[str]:
    """Every name of an algorithm, with and without a level."""
    return {
        name for kind, algorithm in ALGORITHMS.items() for name in (kind, *(f'{kind}:{n}' for n in algorithm.levels))
    }


def is_compression(algo: str | None) -> bool:
    """Whether an algorithm has this name and level. False for None (no compression)."""
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
    return data if algo is None else _find(algo).compress(_check_bytes(data))


def decompress(algo: str | None, data: bytes) -> bytes:
    """The decompressed content; ``data`` itself for None. For trusted data only; see ``unpack_file``.

    Raises:
        ConfigError: no such algorithm.
        TypeError: ``data`` is not bytes.
        ShardError: ``data`` is not a complete compressed file.
    """
    return data if algo is None else _find(algo).decompress(_check_bytes(data))


def unpack_file(algorithm: str, src: Path, dst: Path, limit: int) -> None:
    """Decompress a file of exactly ``limit`` bytes. Several members or frames count as one.

    No file makes it write more than ``limit`` bytes. It needs little memory (Snappy: the file and its content). After
    an error ``dst`` may hold a part of the content.

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
    dst.unlink(missing_ok=True)  # it may be a link
    with src.open('rb') as compressed, dst.open('xb') as out:
        unpack_stream(algorithm, compressed, out, limit, source=str(src))


def unpack_stream(algorithm: str, compressed: BinaryIO, out: BinaryIO, limit: int, *, source: str) -> None:
    """As `unpack_file`, of open files.

    Args:
        algorithm: with or without a level.
        compressed: the compressed file, at its beginning; it can be sought.
        out: receives the content.
        limit: the size of the content, in bytes.
        source: the compressed file in messages.
    """
    compression = _find(algorithm)
    errors = compression.errors()
    written = 0
    _check_announced_size(compression, compressed, source, limit)
    pieces = compression.stream(iter(lambda: compressed.read(CHUNK), b''))
    while True:
        try:
            piece = next(pieces, None)
        except ShardError as error:
            raise ShardError(f'{source}: {error}') from None
        except errors as error:
            raise damaged(source, compression.extension, str(error)) from error
        if piece is None:
            break
        written += len(piece)
        if written > limit:
            raise _wrong_size(source, limit, f'more than {limit}')
        out.write(piece)
    if written != limit:
        raise _wrong_size(source, limit, str(written))


LONGEST_BLOCK: Final = 1 << 18
"""Bytes of a block, which a compressed file gives at once. Unpacking its head needs this many more."""


def unpack_head(algorithm: str, data: bytes, size: int) -> bytes:
    """The first `size` bytes of a compressed file's content; fewer if its first bytes, `data`, do not give them."""
    compression, head = _find(algorithm), bytearray()
    with contextlib.suppress(ShardError, *compression.errors()):
        for piece in compression.stream(iter([data])):
            head += piece
            if len(head) >= size:
                break
    return bytes(head[:size])


def _wrong_size(source: str, limit: int, got: str) -> ShardError:
    return ShardError(f'The index says that {source} holds {limit} bytes, but it holds {got}.')


def _check_announced_size(algorithm: Compression, compressed: BinaryIO, source: str, limit: int) -> None:
    """Refuse a file that announces another size than the index, before memory is allocated."""
    try:
        size = algorithm.announced_size(compressed.read(_HEAD))
    except ShardError as error:
        raise ShardError(f'{source}: {error}') from None
    compressed.seek(0)
    if size is not None and size != limit:
        raise _wrong_size(source, limit, str(size))


def _check_bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f'Compression works on bytes, but got a {type(data).__name__}. Convert it with bytes().')
    return data
