"""An indexed source as JSON: its columns, its parts, and what its format adds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError, FormatError
from headrace.format.encodings import is_mds_encoding
from headrace.sources.protocol import Part
from headrace.storage.protocol import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ['dump_index', 'load_index']

_VERSION: Final = 1


def dump_index(name: str, columns: Mapping[str, str], parts: Sequence[Part], more: Mapping[str, Any]) -> bytes:
    """The bytes of a source.

    Args:
        name: the format.
        columns: see `Source.columns`.
        parts: see `Source.parts`.
        more: values of the format, which JSON can express.
    """
    keys = list(dict.fromkeys(part.key for part in parts))
    number = {key: n for n, key in enumerate(keys)}
    rows = [[number[part.key], part.rows, part.size, *(n for pair in part.ranges for n in pair)] for part in parts]
    value = {
        'version': _VERSION,
        'format': name,
        'columns': dict(columns),
        'keys': keys,
        'parts': rows,
        'more': dict(more),
    }
    return json.dumps(value, separators=(',', ':')).encode('ascii')


def load_index(name: str, data: bytes) -> tuple[dict[str, str], tuple[Part, ...], dict[str, Any]]:
    """The columns, the parts and the format's own values of `dump_index`.

    Raises:
        FormatError: the bytes are damaged, or of another format or version.
    """
    try:
        value = json.loads(data)
        if (value['version'], value['format']) != (_VERSION, name):
            raise ValueError(f'it is of format {value["format"]!r}, version {value["version"]!r}')
        columns, keys, more = value['columns'], [check_key(key) for key in value['keys']], value['more']
        if not isinstance(columns, dict) or not isinstance(more, dict):
            raise TypeError('its columns are no mapping')
        for column, encoding in columns.items():
            if not isinstance(encoding, str) or not is_mds_encoding(encoding):
                raise ValueError(f'column {column!r} has no encoding')
        parts = tuple(_part(keys, row) for row in value['parts'])
    except (ConfigError, ValueError, TypeError, KeyError, IndexError, RecursionError, AttributeError) as error:
        raise FormatError(
            f'The index of a {name} source is damaged or of another version of headrace: {type(error).__name__}: '
            f'{error}. Delete it: it is made anew.'
        ) from None
    return columns, parts, more


def _part(keys: Sequence[str], row: list[int]) -> Part:
    if any(type(value) is not int or value < 0 for value in row) or len(row) % 2 == 0:
        raise ValueError(f'{row!r:.80} is no part')
    number, rows, size, *bounds = row
    ranges = tuple(zip(bounds[::2], bounds[1::2], strict=True))
    ends = [0, *(offset + length for offset, length in ranges)]
    if rows < 1 or any(offset < end for (offset, _), end in zip(ranges, ends, strict=False)):
        raise ValueError(f'{row!r:.80} is no part')
    return Part(keys[number], ranges, rows, size)
