"""The formats that are read without conversion, by name, and the search for the one of a listing."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from headrace.errors import EmptyDatasetError, StreamError

if TYPE_CHECKING:
    from headrace.sources.protocol import SourceFormat
    from headrace.storage import ObjectInfo

__all__ = ['FORMATS', 'check_format', 'choose_split', 'find_format', 'format_of']

_MODULES: Final = {
    'parquet': 'parquet',
    'arrow': 'arrow',
    'litdata': 'litdata',
    'webdataset': 'tar',
    'jsonl': 'lines:JSONL',
    'csv': 'lines:CSV',
    'tsv': 'lines:TSV',
}
"""The module of each format, or an object in it, in the order in which a listing is searched."""
_LAST: Final = frozenset({'jsonl', 'csv', 'tsv'})
"""Formats of any text: taken only if a listing has no other."""
FORMATS: Final = ('mds', *_MODULES)
"""Values of a stream's `format`."""
_OWN: Final = re.compile(r'(.*/)?(shard\.\d+\.(mds|json|csv|tsv|xsv)(\..*)?)')
"""Shards of MDS and its sister formats, which have an index.json."""


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


def find_format(objects: Sequence[ObjectInfo]) -> SourceFormat | None:
    """The format of a listing; None if no format, or only that of MDS, has objects in it.

    Raises:
        StreamError: several formats have.
    """
    if any(_OWN.fullmatch(info.key) for info in objects):
        return None
    found = [format_of(name) for name in _MODULES if format_of(name).find(objects)]
    found = [one for one in found if one.NAME not in _LAST] or found
    if len(found) > 1:
        names = [one.NAME for one in found]
        raise StreamError(
            f'The data are of several formats: {", ".join(names)}. Say which to read, such as `format={names[0]!r}`, '
            f'or name the files with a glob in `remote`.'
        )
    return found[0] if found else None


def choose_split(objects: Sequence[ObjectInfo], split: str, place: str) -> list[ObjectInfo]:
    """The objects of a split, by their names: those of its folder, else those that the Hugging Face Hub would choose.

    These are files such as ``data/train-00000-of-00007.parquet``, else all with the split's name between separators.

    Args:
        objects: the listing, of one format.
        split: such as 'train'.
        place: the dataset, for messages.

    Raises:
        EmptyDatasetError: no object has the split's name.
    """
    name = re.escape(split.strip('/'))
    for pattern in (rf'{name}/', rf'(.*/)?{name}-\d+-of-\d+', rf'(.*[-._ /\d])?{name}([-._ /\d]|$)'):
        chosen = [info for info in objects if re.match(pattern, info.key)]
        if chosen:
            return chosen
    some = ', '.join(info.key for info in objects[:3]) + ', ...' * (len(objects) > 3)
    raise EmptyDatasetError(
        f'The files of split {split!r} are in its folder, or have its name, but {place} has the files {some}. Correct '
        f'`split`, or name the files with a glob in `remote`.'
    )
