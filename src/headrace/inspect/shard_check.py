"""The checks of one shard: sizes, checksums, unpacking, offsets, columns, and every sample."""

from __future__ import annotations

import dataclasses
import json
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np

from headrace.convert.stored_dataset import folder_of, raw_files
from headrace.display import printable
from headrace.errors import FormatError, HeadraceError, MissingDependencyError, ObjectNotFoundError, StorageError
from headrace.format import Schema, ShardInfo, open_shard
from headrace.format.encodings import is_mds_encoding_safe
from headrace.redaction import redact
from headrace.storage import Retry, Store

__all__ = ['BadShard', 'check_shard']

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


def check_shard(store: Store, number: int, info: ShardInfo, retry: Retry) -> BadShard | None:
    """Read a whole shard and check everything; None if all is right.

    Compressed and raw files are both checked, if a local folder has both.

    Raises:
        MissingDependencyError: a compression or encoding needs a package that is not installed.
    """
    checking = 'size'

    def step(name: str) -> None:
        nonlocal checking
        checking = name

    try:
        for is_compressed in _variants(store, info):
            buffers = raw_files(store, info, retry, is_compressed=is_compressed, step=step)
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
    file = info.files[0].raw.basename
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
    """Check a shard's mapped raw files."""
    readable = _with_pickles_as_bytes(info)
    reader = open_shard(readable, buffers, source=info.files[0].raw.basename)
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


def _with_pickles_as_bytes(info: ShardInfo) -> ShardInfo:
    """The shard with values that run code read as bytes."""
    schema = info.schema
    if schema.format != 'mds' or all(map(is_mds_encoding_safe, schema.encodings)):
        return info
    encodings = tuple(
        encoding if is_mds_encoding_safe(encoding) else 'bytes' if size is None else f'ndarray:uint8:{size}'
        for encoding, size in zip(schema.encodings, schema.sizes, strict=True)
    )
    return dataclasses.replace(info, schema=Schema('mds', schema.names, encodings, schema.sizes))


def _blocks(info: ShardInfo) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Runs of rows that take little memory when they are decoded."""
    rows = _BLOCK_BYTES * info.samples // max(1, info.files[0].raw.bytes)
    rows = min(max(1, rows), _BLOCK_ROWS)
    return (np.arange(first, min(first + rows, info.samples)) for first in range(0, info.samples, rows))


def _check_header(info: ShardInfo, data: memoryview) -> None:
    """Compare the columns that an MDS file names itself with those of the index."""
    begin, end = 8 + 4 * info.samples, int.from_bytes(data[4:8], 'little')
    try:
        found = json.loads(bytes(data[begin:end]))
    except ValueError:
        return  # no reader needs it, and other writers may leave it out
    config = info.schema.config()
    if isinstance(found, dict) and all(key in found for key in _COLUMN_KEYS):
        for key in _COLUMN_KEYS:
            if found[key] != config[key]:
                raise FormatError(f'the index gives the {key} {config[key]!r}, but the file {found[key]!r:.500}')


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
