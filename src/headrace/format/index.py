"""``index.json``: the shards of a dataset, their files, and the encodings of their columns.

All entries are checked before use. No name leads out of the dataset's folder, and no count is larger than its file. A
column that runs code needs permission.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.errors import EmptyDatasetError, FormatError, HeadraceError, IndexFileError
from headrace.format.entries import EntryParser, show
from headrace.format.fast_path import read_by_pattern
from headrace.format.rules import is_surely_valid
from headrace.format.scan import Elements, NotAnObjectError, top_level
from headrace.format.shards import ShardInfo
from headrace.format.table import ShardTable
from headrace.format.table_builder import TableBuilder

__all__ = ['dump_index', 'parse_index']

LARGE: Final = 1 << 16  # characters; a pattern costs more than it saves in a smaller index


def dump_index(shards: Iterable[ShardInfo], *, version_first: bool = False) -> bytes:
    """The bytes of ``index.json``.

    Args:
        shards: in order.
        version_first: put the version before the shards, as in a merged index.
    """
    entries = ', '.join(json.dumps(shard.entry(), sort_keys=True) for shard in shards)
    if version_first:
        return f'{{"version": 2, "shards": [{entries}]}}'.encode('ascii')
    return f'{{"shards": [{entries}], "version": 2}}'.encode('ascii')


def parse_index(data: bytes, *, source: str, allow_unsafe_types: bool = False, allow_empty: bool = False) -> ShardTable:
    """The shards of an index, in order; shards without samples included.

    Args:
        data: the file's bytes.
        source: its path or URL, for messages.
        allow_unsafe_types: accept `pkl` columns, which run code when they are read.
        allow_empty: accept an index without samples.

    Raises:
        IndexFileError: the file is empty or not JSON.
        FormatError: the JSON is not an index, or a column is unsafe.
        EmptyDatasetError: it has no samples.
    """
    try:
        text = data.decode('utf-8')
    except UnicodeDecodeError as error:
        raise IndexFileError(
            _corrupted(source, f'it is not UTF-8 text ({error.reason} at byte {error.start})')
        ) from None
    shards = _parse_by_pattern(text, source, allow_unsafe_types) if len(text) >= LARGE else None
    if shards is None:
        shards = _parse(text, source, allow_unsafe_types, _parse_each)
    if not allow_empty and not shards.samples.any():
        raise EmptyDatasetError(
            f'Stream contains no samples: {source} lists {len(shards)} shards with 0 samples. '
            f'Check that its writer was closed, or leave the stream out.'
        )
    return shards


def _parse_by_pattern(text: str, source: str, allow_unsafe_types: bool) -> ShardTable | None:
    """The shards of an index that surely breaks no rule; else None."""
    try:
        shards = _parse(text, source, allow_unsafe_types, read_by_pattern)
    except HeadraceError:
        return None
    return shards if is_surely_valid(shards) else None


def _parse_each(elements: Elements, parser: EntryParser, builder: TableBuilder) -> None:
    for entry in elements:
        builder.add(parser.parse(entry))


def _parse(
    text: str,
    source: str,
    allow_unsafe_types: bool,
    read: Callable[[Elements, EntryParser, TableBuilder], None],
) -> ShardTable:
    shards: ShardTable | None = None
    version: Any = None
    collecting = gc.isenabled()
    gc.disable()  # a large index makes millions of objects: garbage collection takes a third of the time
    try:
        for key, value in top_level(text, lazy='shards'):
            if key == 'version':
                version = value
            elif key == 'shards':
                if not isinstance(value, Elements):
                    raise FormatError(f'`shards` of an index is a list, but {source} has {show(value)}.')
                builder = TableBuilder()  # the last of repeated keys counts
                read(value, EntryParser(source, allow_unsafe_types), builder)
                shards = builder.finish()
    except NotAnObjectError as error:
        raise FormatError(f'An index is a JSON object, but {source} holds {show(error.args[0])}.') from None
    except json.JSONDecodeError as error:
        raise IndexFileError(_corrupted(source, str(error))) from None
    except RecursionError:
        raise FormatError(f'Index file at {source} is nested too deeply: it is no index.') from None
    except FormatError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise FormatError(f'Index file at {source} cannot be read: {error}.') from None
    finally:
        if collecting:
            gc.enable()
    if isinstance(version, bool) or version != 2:
        raise FormatError(
            f'An index has version 2, but {source} has {show(version)}. '
            f'Write the dataset again with a writer of version 2.'
        )
    if shards is None:
        raise FormatError(f'An index has the key `shards`, but {source} lacks it.')
    return shards


def _corrupted(source: str, reason: str) -> str:
    return f'Index file at {source} is empty or corrupted: {reason}. Fetch or write it again.'
