"""Compressed shard files: whole-file streams of Brotli, bzip2, gzip, Snappy (raw block) or Zstandard.

A name is an algorithm with an optional level: ``br:0..11``, ``bz2:1..9``, ``gz:0..9``, ``snappy``, ``zstd:1..22``.
`register_compression` adds others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Final

from headrace.errors import ConfigError, ShardError
from headrace.format.compression_algorithms import ALGORITHMS, CHUNK, Compression, damaged, register_compression

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    'compress',
    'decompress',
    'get_compression_extension',
    'get_compressions',
    'is_compression',
    'register_compression',
    'unpack_file',
    'unpack_stream',
]

_HEAD: Final = 64  # first bytes of a file, which may announce the size of its content


def _find(algorithm: str) -> Compression:
    name, colon, level = algorithm.partition(':')
    found = ALGORITHMS.get(name)
    if found is not None and not colon:
        return found()
    if found is not None and level.isascii() and level.isdecimal() and len(level) <= 2 and int(level) in found.levels:
        return found(int(level))
    known = ', '.join(
        f'{name}:{kind.levels[0]}..{kind.levels[-1]}' if kind.levels else name for name, kind in ALGORITHMS.items()
    )
    raise ConfigError(
        f'{algorithm!r} is not a supported compression algorithm. Use one of {known}, with or without a level.'
    )


def get_compressions() -> set[str]:
    """Every name of an algorithm, with and without a level."""
    return {
        name for kind, algorithm in ALGORITHMS.items() for name in (kind, *(f'{kind}:{n}' for n in algorithm.levels))
    }


def is_compression(algo: str | None) -> bool:
    """Whether an algorithm has this name and level. None (no compression) is no algorithm."""
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
    found = _find(algorithm)
    errors = found.errors()
    written = 0
    _check_announced_size(found, compressed, source, limit)
    pieces = found.stream(iter(lambda: compressed.read(CHUNK), b''))
    while True:
        try:
            piece = next(pieces, None)
        except ShardError as error:
            raise ShardError(f'{source}: {error}') from None
        except errors as error:
            raise damaged(source, found.extension, str(error)) from error
        if piece is None:
            break
        written += len(piece)
        if written > limit:
            raise _wrong_size(source, limit, f'more than {limit}')
        out.write(piece)
    if written != limit:
        raise _wrong_size(source, limit, str(written))


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
