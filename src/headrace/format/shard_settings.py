"""The settings that encoders of all formats share: compression, hashes and size of shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.format.checksum import is_hash
from headrace.format.compression import get_compression_extension
from headrace.format.human_size import bytes_to_int

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ['DEFAULT_SIZE_LIMIT', 'MAX_OFFSET', 'check_compression', 'check_hashes', 'check_size_limit']

DEFAULT_SIZE_LIMIT: Final = 1 << 26
MAX_OFFSET: Final = (1 << 32) - 1
"""The largest offset of a shard's table."""


def check_compression(compression: str | None) -> str | None:
    """The algorithm with its level, or None.

    Raises:
        ConfigError: it is unknown, or no text.
    """
    if not compression:
        return None
    if not isinstance(compression, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not all callers have types
        raise ConfigError(
            f"`compression` is the name of an algorithm, such as 'zstd' or 'zstd:7', but is {compression!r}."
        )
    get_compression_extension(compression)  # refuses an unknown one
    return compression


def check_hashes(hashes: Sequence[str] | None) -> tuple[str, ...]:
    """The names of hash algorithms.

    Raises:
        ConfigError: one is unknown, or they are not sorted, or no list.
    """
    given: Any = hashes
    if isinstance(given, str) or not (given is None or isinstance(given, Iterable)):
        raise ConfigError(f"`hashes` is a list of names, such as ['sha1'], but is {given!r}.")
    names = tuple(hashes or ())
    unknown = [name for name in names if not is_hash(name)]
    if unknown:
        raise ConfigError(f'{unknown[0]!r} is not a supported hash algorithm. See `headrace.format.get_hashes()`.')
    if list(names) != sorted(names):
        raise ConfigError(f'`hashes` is sorted by name, but got {list(names)}. Give {sorted(names)}.')
    return names


def check_size_limit(size_limit: int | str | None) -> int | None:
    """Bytes of a shard, or None for no limit.

    Raises:
        ConfigError: they are no number of bytes, or 4 GiB and more.
    """
    if size_limit is None:
        return None
    limit = bytes_to_int(size_limit)
    if limit < 0:
        raise ConfigError(f'`size_limit` is a number of bytes, 0 or None for no limit, but got {size_limit!r}.')
    if limit > MAX_OFFSET:
        raise ConfigError(
            f'`size_limit` must be less than 2**32 because shards hold 32-bit offsets, but got {size_limit!r}. '
            f"Use a smaller one: '64mb' suits most data."
        )
    return limit or None
