"""The formats that are read without conversion, by name, and those of a listing."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from headrace.errors import StreamError
from headrace.sources.object_names import name_of

if TYPE_CHECKING:
    from headrace.sources.protocol import SourceFormat
    from headrace.storage import ObjectInfo

__all__ = ['DESCRIPTIONS', 'FORMATS', 'check_format', 'format_of', 'formats_in', 'how_to_rename', 'one_format']

_MODULES: Final = {
    'parquet': 'parquet',
    'arrow': 'arrow',
    'litdata': 'litdata',
    'webdataset': 'tar',
    'jsonl': 'lines:JSONL',
    'csv': 'lines:CSV',
    'tsv': 'lines:TSV',
}
"""The module of each format, or an object in it."""
FORMATS: Final = ('mds', *_MODULES)
"""Values of a stream's `format`."""
_OWN: Final = re.compile(r'(.*/)?(shard\.\d+\.(mds|json|csv|tsv|xsv)(\..*)?)')
"""Shards of MDS and its sister formats, which have an index.json."""
DESCRIPTIONS: Final = frozenset(
    {'index.json', 'state.json', 'dataset_dict.json', 'dataset_info.json', 'dataset_infos.json'}
)
"""JSON files that say something of data beside them."""


def format_of(name: str) -> SourceFormat:
    """The format of this name, other than 'mds'; its module is imported now."""
    module, _, attribute = _MODULES[name].partition(':')
    found = importlib.import_module(f'headrace.sources.{module}')
    return cast('SourceFormat', getattr(found, attribute) if attribute else found)


def check_format(name: str | None) -> str | None:
    """A stream's `format`, checked.

    Raises:
        StreamError: there is none of this name.
    """
    if name is not None and name not in FORMATS:
        raise StreamError(f'`format` of a stream is one of {", ".join(FORMATS)}, but is {name!r:.80}.')
    return name


def formats_in(objects: Sequence[ObjectInfo]) -> dict[str, int]:
    """The number of files of each format in a listing; none if it has shards of MDS."""
    if any(_OWN.fullmatch(info.key) for info in objects):
        return {}
    found = {name: len(format_of(name).find(objects)) for name in _MODULES}
    return {name: count for name, count in found.items() if count}


def one_format(counts: Mapping[str, int], place: str) -> str | None:
    """The only format; None if there is none.

    Args:
        counts: files of each format.
        place: the dataset, for messages.

    Raises:
        StreamError: there are several.
    """
    if len(counts) > 1:
        files = ', '.join(f'{name} ({count} file{"s" * (count > 1)})' for name, count in counts.items())
        raise StreamError(
            f'The data at {place} are of several formats: {files}. Say which to read, such as '
            f'`format={next(iter(counts))!r}` (`--format`), or name the files with a glob in `remote`.'
        )
    return next(iter(counts), None)


def how_to_rename(keys: Iterable[str]) -> str:
    """What to do with a JSON file that may have lines, as the end of a message; '' if there is none."""
    names = [key for key in keys if key.lower().endswith('.json') and name_of(key) not in DESCRIPTIONS]
    if not names:
        return ''
    return f' A .json, such as {names[0]}, may be one large value: rename it to .jsonl if each line is an object.'
