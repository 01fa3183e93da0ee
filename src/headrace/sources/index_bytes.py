"""The bytes of an indexed source whose format adds only values that JSON can express."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import FormatError
from headrace.sources.part_table import PartTable
from headrace.sources.source_bytes import pack_source, unpack_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.sources.protocol import Part

__all__ = ['dump_index', 'load_index']


def dump_index(name: str, columns: Mapping[str, str], parts: Iterable[Part], more: Mapping[str, Any]) -> bytes:
    """The bytes of a source.

    Args:
        name: the format.
        columns: see `Source.columns`.
        parts: see `Source.parts`.
        more: what the format adds.
    """
    table = parts if isinstance(parts, PartTable) else PartTable.of(parts)
    settings = {'format': name, 'columns': dict(columns), 'keys': table.keys, 'more': dict(more)}
    return pack_source(settings, table.arrays())


def load_index(name: str, data: bytes) -> tuple[dict[str, str], PartTable, dict[str, Any]]:
    """The columns, the parts, and what the format adds.

    Raises:
        FormatError: the bytes are damaged, or of another format or version.
    """
    source = unpack_source(data)
    found = source.settings.get('format')
    if found != name:
        raise FormatError(
            f'This is the index of a {name} source, but it is that of {found!r}. Delete it: it is made anew.'
        )
    settings = source.settings
    return settings['columns'], PartTable.from_arrays(settings['keys'], source.arrays), settings['more']
