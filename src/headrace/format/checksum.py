"""Checksums of shard files: always the size, a hash on request."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final

import xxhash

from headrace.errors import ChecksumError, ConfigError
from headrace.format.shards import FileInfo

_CHUNK: Final = 1 << 20

_HASHES: Final[dict[str, Callable[[], Any]]] = {
    'blake2b': hashlib.blake2b,
    'blake2s': hashlib.blake2s,
    'md5': lambda: hashlib.md5(usedforsecurity=False),
    'sha1': lambda: hashlib.sha1(usedforsecurity=False),
    'sha224': hashlib.sha224,
    'sha256': hashlib.sha256,
    'sha384': hashlib.sha384,
    'sha512': hashlib.sha512,
    'sha3_224': hashlib.sha3_224,
    'sha3_256': hashlib.sha3_256,
    'sha3_384': hashlib.sha3_384,
    'sha3_512': hashlib.sha3_512,
    'xxh32': xxhash.xxh32,
    'xxh64': xxhash.xxh64,
    'xxh128': xxhash.xxh3_128,
    'xxh3_64': xxhash.xxh3_64,
    'xxh3_128': xxhash.xxh3_128,
}


def get_hashes() -> set[str]:
    """The 17 names of hash algorithms."""
    return set(_HASHES)


def is_hash(algo: str) -> bool:
    """Whether a hash algorithm has this name."""
    return algo in _HASHES


def get_hash(algo: str, data: bytes | bytearray | memoryview) -> str:
    """The lower-case hexadecimal digest of ``data``.

    Raises:
        ConfigError: no such algorithm.
    """
    state = _new(algo)
    state.update(data)
    return state.hexdigest()


def _new(algo: str) -> Any:
    make = _HASHES.get(algo)
    if make is None:
        raise ConfigError(f'{algo!r} is not a supported hash algorithm. Choose one of {", ".join(sorted(_HASHES))}.')
    return make()


def hash_file(file: BinaryIO, algorithms: Iterable[str]) -> dict[str, str]:
    """Several lower-case hexadecimal digests of the rest of an open file, which is read once.

    Raises:
        ConfigError: no such algorithm.
    """
    states = {algorithm: _new(algorithm) for algorithm in algorithms}
    while states and (chunk := file.read(_CHUNK)):
        for state in states.values():
            state.update(chunk)
    return {algorithm: state.hexdigest() for algorithm, state in states.items()}


def verify_file(path: Path, info: FileInfo, algorithm: str | None) -> None:
    """Check a file against its entry in the index. Only a hash needs to read it, in pieces of 1 MiB.

    Args:
        path: the file.
        info: its entry in the index.
        algorithm: the hash to check, None for the size only.

    Raises:
        ConfigError: no such algorithm.
        ChecksumError: the size or the hash differs, or the index does not record this hash.
        OSError: the file cannot be read.
    """
    if algorithm is not None:
        _new(algorithm)
    status = path.stat()
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise ChecksumError(f'The index says that {info.basename} is a file, but {path} is not. Remove it.')
    if size != info.bytes:
        raise ChecksumError(f'The index says that {info.basename} has {info.bytes} bytes, but {path} has {size}.')
    if algorithm is None:
        return
    expected = info.hashes.get(algorithm)
    if expected is None:
        recorded = ', '.join(sorted(info.hashes)) or 'none'
        raise ChecksumError(
            f'`validate_hash` names a hash that the index records, but it has no {algorithm} of {info.basename}: '
            f'recorded are {recorded}. Choose one of those, or write the dataset with `hashes=[{algorithm!r}]`.'
        )
    with path.open('rb') as file:
        digest = hash_file(file, [algorithm])[algorithm]
    if digest != expected.lower():
        raise ChecksumError(
            f'The index says that the {algorithm} of {info.basename} is {expected[:140]}, but that of {path} is '
            f'{digest}: it is damaged, or of another version.'
        )
