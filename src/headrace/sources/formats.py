"""The formats that are read without conversion, by name and in a listing, and what they share: names, columns."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from headrace.errors import ConfigError, FormatError, StreamError
from headrace.errors.display import count_text, printable
from headrace.sources.protocol import SourceFormat
from headrace.storage import ObjectInfo

_MODULES: Final = {
    'delta': 'delta',
    'iceberg': 'iceberg',
    'parquet': 'parquet',
    'arrow': 'arrow',
    'litdata': 'litdata',
    'lance': 'lance_data',
    'webdataset': 'tar',
    'tfrecord': 'tfrecord',
    'jsonl': 'lines:JSONL',
    'csv': 'lines:CSV',
    'tsv': 'lines:TSV',
    'megatron': 'megatron',
    'tokens': 'tokens',
}
"""The module of each format, or an object in it."""
FORMATS: Final = ('mds', *_MODULES)  # Values of a stream's `format`, without registered ones.
TABLES: Final = ('delta', 'iceberg')
"""Formats whose metadata say which of the files beside them are read. Their modules have a `decisive`."""
OF_ANY_NAME: Final = ('parquet', 'arrow', 'webdataset', 'tfrecord', 'jsonl', 'csv', 'tsv', 'tokens')
"""Formats whose files need nothing beside them: with `format`, those that `remote` names may have any names."""
_registered: dict[str, SourceFormat] = {}
_COMMON: Final = ('columns', 'allow_unsafe_types')
"""Keyword parameters of `SourceFormat.index` that are not options of the format."""
_OWN: Final = re.compile(r'(.*/)?(shard\.\d+\.(mds|json|csv|tsv|xsv)(\..*)?)')
"""Shards of MDS and its sister formats, which have an index.json."""
SIDECARS: Final = ('.idx', '.index', '.metadata')  # Endings of files that describe the tokens in the file beside them.
_UNSURE: Final = 'tokens'  # The format whose files may be of many other programs, by their names.
_BESIDE_TOKENS: Final = re.compile(
    r'(.*/)?([^/]*\.(bin|npy|ds|u16|u32|index|metadata|md|txt|json|ya?ml|py|pkl|model)|LICENSE)', re.IGNORECASE
)
"""Files that may lie in a folder of tokens."""
_ARRAY_RECORD: Final = re.compile(r'\.array_?records?(-\d+-of-\d+)?$', re.IGNORECASE)
_PACKED: Final = re.compile(r'\.(xz|lzma|lz4|zip|7z|rar)$|\.(parquet|arrow|feather|npy|mds)\.\w+$', re.IGNORECASE)
"""Names of files that are compressed in a way that is not read."""
DESCRIPTIONS: Final = frozenset(
    {'index.json', 'state.json', 'dataset_dict.json', 'dataset_info.json', 'dataset_infos.json'}
)
"""JSON files that say something of data beside them."""


def register_format(source_format: SourceFormat) -> None:
    """Register a format that streams and conversions read without conversion, by its `NAME`.

    Call it where your module is imported, and import that module in the script that makes the dataset. Workers import
    the script, so they know the format too, with any start method. `headrace.testing.SourceContract` tests a format.

    Args:
        source_format: a module or an object; see `SourceFormat`. The same one may be registered again.

    Raises:
        ConfigError: the name is malformed, or is that of another format.
    """
    name = source_format.NAME
    if not re.fullmatch('[a-z][a-z0-9_-]*', name):
        raise ConfigError(
            f'The name of a format has lower-case letters, digits, "-" and "_", but is {name!r:.80}. Choose '
            f'such a name.'
        )
    if name in FORMATS or _registered.get(name, source_format) is not source_format:
        raise ConfigError(f'A format has a name of its own, but {name!r} is taken. Choose another one.')
    _registered[name] = source_format


def known_formats() -> tuple[str, ...]:
    """Values of a stream's `format`."""
    return (*FORMATS, *_registered)


def format_of(name: str) -> SourceFormat:
    """The format of this name, other than 'mds', whose module is imported now; a FormatError if it is unknown."""
    if name in _registered:
        return _registered[name]
    if name not in _MODULES:
        raise FormatError(
            f'The data is of the format {name!r:.80}, which is not known here. Import the module that registers it.'
        )
    module, _, attribute = _MODULES[name].partition(':')
    reader = importlib.import_module(f'headrace.sources.{module}')
    return cast('SourceFormat', getattr(reader, attribute) if attribute else reader)


def check_format(name: str | None) -> str | None:
    if name is not None and name not in known_formats():
        raise StreamError(
            f'`format` of a stream is one of {", ".join(known_formats())}, but is {name!r:.80}. Correct it, or import '
            f'the module that registers it.'
        )
    return name


def check_options(name: str | None, options: object) -> dict[str, Any]:
    """A stream's `format_options`, checked; the format is imported."""
    if not options:
        return {}
    if not isinstance(options, Mapping):
        raise StreamError(f'`format_options` is a mapping such as {{"delimiter": ";"}}, but is {options!r:.100}.')
    given = dict(cast('Mapping[str, Any]', options))
    if name is None or name == 'mds':
        raise StreamError(f'`format_options` are those of a named `format`, but it is {name!r}. Name the format, too.')
    parameters = inspect.signature(format_of(name).index).parameters.values()
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in _COMMON
    }
    for option in given:
        if option not in defaults:
            takes = f'takes {", ".join(defaults)}' if defaults else 'takes none'
            raise StreamError(
                f'`format_options` has {option!r:.80}, but the format {name} {takes}. Correct or remove it.'
            )
    try:
        plain = cast('dict[str, Any]', json.loads(json.dumps(given, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise StreamError(
            f'`format_options` has values that JSON can express, but is {given!r:.200}: {error}. Use such values.'
        ) from None
    # A default makes no other data.
    return {
        name: value for name, value in plain.items() if json.dumps(value) != json.dumps(defaults[name], default=str)
    }


def formats_in(objects: Sequence[ObjectInfo], *, is_named: bool = False) -> dict[str, int]:
    """The number of files of each format in a listing, which is empty if it has shards of MDS.

    `is_named`: whether the user named the files, so that a .json that is alone holds data.
    """
    if are_shards(info.key for info in objects):
        return {}
    if tables := {name: len(infos) for name in TABLES if (infos := format_of(name).find(objects))}:
        return tables
    formats = {name: format_of(name).find(objects) for name in known_formats() if name not in ('mds', *TABLES)}
    counts = {name: len(infos) for name, infos in formats.items() if infos}
    if (len(counts) > 1 or not is_named) and any(info.key.lower().endswith('.json') for info in formats['jsonl']):
        del counts['jsonl']
    others = (info for info in objects if not is_hidden(info.key) and not _BESIDE_TOKENS.fullmatch(info.key))
    if _UNSURE in counts and (len(counts) > 1 or any(others)):
        del counts[_UNSURE]
    return counts


def one_format(counts: Mapping[str, int], place: str) -> str | None:
    """The only format; None if there is none."""
    if len(counts) > 1:
        files = ', '.join(f'{name} ({count_text(count, "file")})' for name, count in counts.items())
        raise StreamError(
            f'The data at {place} are of several formats: {files}. Say which to read, such as '
            f'`format={next(iter(counts))!r}` (`--format`), or name the files with a glob in `remote`.'
        )
    return next(iter(counts), None)


def how_to_name(keys: Iterable[str]) -> str:
    """How to read files of unknown format that may have samples, as the end of a message, or ''."""
    keys = list(keys)
    arrays = next((key for key in keys if _ARRAY_RECORD.search(key)), None)
    if arrays is not None:
        return (
            f' Files of ArrayRecord, such as {arrays}, are not read, since its library reads whole local files only. '
            f'Convert them, as docs/formats.md shows.'
        )
    packed = next((key for key in keys if _PACKED.search(key)), None)
    if packed is not None:
        return (
            f' Compressed files such as {packed} are not read: text, tars and TFRecord may be of gzip, zstd or bzip2. '
            f'Unpack the others.'
        )
    name = next((key for key in keys if is_plain_json(key)), None)
    if name is None or are_shards(keys):
        return ''
    return f" A .json, such as {name}, may be a description: `format='jsonl'`, or its name in `remote`, reads it."


def are_shards(keys: Iterable[str]) -> bool:
    """Whether there are shards of MDS or of its sister formats among objects."""
    return any(map(_OWN.fullmatch, keys))


def is_plain_json(key: str) -> bool:
    """Whether an object is a ``.json`` that may hold samples."""
    return key.lower().endswith('.json') and name_of(key) not in DESCRIPTIONS


def is_hidden(key: str) -> bool:
    """Whether an object is of another program: its name, or that of a folder, begins with '_' or '.'.

    Folders such as '_date=1' are of Hive, and are not hidden.
    """
    *folders, name = key.split('/')
    return any(part.startswith(('.', '_')) for part in (name, *(part for part in folders if '=' not in part)))


def folder_of(key: str) -> str:
    """The folder of an object; '' for the root."""
    return key.rpartition('/')[0]


def name_of(key: str) -> str:
    return key.rpartition('/')[2]


_MOST: Final = 32  # columns that a message names


def choose_columns(names: Sequence[str], columns: Collection[str] | None, *, source: str) -> list[str]:
    """The columns to read, in the order of the data.

    `columns`: the columns that are asked for; None: all.
    `source`: the data, for messages.

    Raises:
        FormatError: two columns have one name.
        StreamError: the data lack a column.
    """
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise FormatError(
            f'The columns of a dataset have different names, but {source} has several columns {twice[0]!r}. Write it '
            f'again with other names.'
        )
    if columns is None:
        return list(names)
    for name in columns:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            meant = f' Did you mean {nearest[0]!r}?' if nearest else ''
            listed = printable(', '.join(names[:_MOST]))
            more = f' and {len(names) - _MOST} more' if len(names) > _MOST else ''
            raise StreamError(
                f'`columns`, `where` or `cost` asks for {name!r}, but {source} has the columns {listed}{more}.{meant}'
            )
    return [name for name in names if name in columns]


def refuse_null_files(columns: Mapping[str, str], with_nulls: Collection[str], *, source: str) -> None:
    """Refuse columns of files, or of lists of them, that hold nulls, where no `where` leaves these out."""
    for name in with_nulls:
        if columns.get(name) in {'bytes', 'jpeg', 'jpeg_array'}:
            raise FormatError(
                f'Columns of bytes or of files have no nulls, but column {name!r} of {source} holds some. Give the '
                f"stream `where={{{name!r}: {{'not': None}}}}`, which leaves these rows out, or leave the column out "
                f'with `columns=`. A conversion has no `where`: convert data without these rows.'
            )
