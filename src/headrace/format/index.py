"""``index.json``: the shards of a dataset, their files, and the encodings of their columns.

All entries are checked before use. No name leads out of the dataset's folder, and no count is larger than its file. A
column that runs code needs permission.

A large index is read by pattern. One program wrote all its entries, so they differ only in counts, names and digests.
The text of one parsed and checked entry becomes a regular expression, with a group for each value that may differ. A
group matches only one JSON number, or one JSON text without escapes. Matching is several times faster than parsing. It
refuses nothing, and checks neither file names nor sizes, as `is_surely_valid` does. An index that breaks a rule is
parsed entry by entry.

The JSON objects of an index need several times the memory of its table. So its list of shards is never held as a whole.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import lt
from pathlib import Path
from typing import Any, Final

from headrace.errors import EmptyDatasetError, FormatError, HeadraceError, IndexFileError
from headrace.format.entries import INDEX_NAME, EntryParser, is_surely_valid, show
from headrace.format.shards import Erasure, ShardInfo
from headrace.format.table import Kind, Row, ShardTable, TableBuilder

LARGE: Final = 1 << 16  # characters; a pattern costs more than it saves in a smaller index

_NUMBER: Final = '(0|[1-9][0-9]{0,17})'  # fits an int64
_TEXT: Final = r'"([^"\\\x00-\x1f]*)"'
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[ \t\n\r]+|[^ \t\n\r{}\[\],:"]+')
_LONGEST: Final = 1 << 16  # characters of an object with a pattern
_MOST: Final = 8  # patterns made for one list, and tried on one object
_RUN: Final = 1 << 14  # shards taken at once


def dump_index(
    shards: Iterable[ShardInfo],
    *,
    version_first: bool = False,
    meanings: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes of ``index.json``.

    Args:
        shards: in order.
        version_first: put the version before the shards, as in a merged index.
        meanings: what columns mean besides what the shards' schemas say; see `Schema.meanings`.
    """
    all_meanings, erased = dict(meanings or {}), dict[str, dict[str, Any]]()

    def entries() -> Iterator[dict[str, Any]]:
        for shard in shards:
            all_meanings.update(shard.schema.meaning_of)
            if shard.erasure.rows:
                erased[shard.name] = shard.erasure._asdict()
            yield shard.entry()

    return dump_entries(entries(), {'erased': erased, 'meanings': all_meanings}, version_first=version_first)


def dump_entries(
    entries: Iterable[Mapping[str, Any]], header: Mapping[str, Any], *, version_first: bool = False
) -> bytes:
    """As `dump_index`, of the shards' JSON objects and of headrace's own keys, which other readers pass over.

    `own`: `erased`, the `Erasure` of shards by raw files; `meanings`, `Schema.meaning_of`. Empty ones are left out.
    """
    shards = f'"shards": [{", ".join(json.dumps(entry, sort_keys=True) for entry in entries)}]'
    keys = ['"version": 2', shards] if version_first else [shards, '"version": 2']
    before = (f'"{key}": {json.dumps(value, sort_keys=True)}' for key, value in header.items() if value)
    return f'{{{", ".join([*before, *keys])}}}'.encode('ascii')


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
    shards = _try_patterns(text, source, allow_unsafe_types) if len(text) >= LARGE else None
    if shards is None:
        shards = _parse(text, source, allow_unsafe_types, _parse_each)
    if not allow_empty and not shards.samples.any():
        raise EmptyDatasetError(
            f'Stream contains no samples: {source} lists {len(shards)} shards with 0 samples. '
            f'Check that its writer was closed, or leave the stream out.'
        )
    return shards


@dataclass(frozen=True, slots=True)
class Generation:
    """Shards of an index to which others were appended since: those that it had then, from one on.

    Its text is the fingerprint of the data.
    """

    digest: str  # Of the bytes of its index.
    first: int = 0  # Number of its first shard.

    @classmethod
    def of(cls, fingerprint: str) -> Generation | None:
        """Read a fingerprint, with or without a selection; None for data without an ``index.json``."""
        match = re.fullmatch('([0-9a-f]{16})(?: from shard ([1-9][0-9]{0,8}))?', fingerprint.partition(', ')[0])
        return None if match is None else cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f'{self.digest} from shard {self.first}' if self.first else self.digest

    def is_in(self, path: Path) -> bool:
        try:
            return self.shards_in(path.read_bytes()) is not None
        except (OSError, ValueError, NotAnObjectError):
            return False

    def shards_in(self, data: bytes) -> range | None:
        """Its shards in the bytes of a valid index; None if these do not begin with it."""
        text = data.decode()
        begin, ends = 0, list[int]()
        for _, value in top_level(text):
            if isinstance(value, Elements):
                begin, ends = value.at + 1, [value.at for _ in value]
        if not ends:
            return None
        # A writer that appends may put the version at the other end than the writer before it.
        for head, tail in {(text[:begin], text[ends[-1] :]), *_FRAMES}:
            digest, at = _digest(head.encode()), begin
            for number, end in enumerate(ends, 1):
                digest.update(text[at:end].encode())
                whole, at = digest.copy(), end
                whole.update(tail.encode())
                if whole.hexdigest() == self.digest:
                    return range(self.first, number) if self.first < number else None
        return None


_FRAMES: Final = (('{"version": 2, "shards": [', ']}'), ('{"shards": [', '], "version": 2}'))
_digest: Final = partial(hashlib.blake2b, digest_size=8)


class IndexFile:
    """The ``index.json`` of one stream, and the table of shards that it holds."""

    index_name: Final = INDEX_NAME
    """The file's name in the dataset's folder."""

    def __init__(
        self, source: str, *, allow_unsafe_types: bool, wanted: Generation | None = None, only_grows: bool = False
    ) -> None:
        """Touches no file.

        `wanted`: the shards to offer, if the index begins with them; None: all. `only_grows`: nobody writes other data
        under the name of a shard that was there before.
        """
        self.shards = ShardTable.empty()
        """All shards."""
        self.offered = range(0)
        """Numbers of the shards that are offered."""
        self.fingerprint = ''
        """Of the shards that are offered; an erasure leaves it as it is."""
        self.digest = ''
        """As `fingerprint`, of all shards."""
        self.stored: Generation | None = None
        """Of the file's bytes, erasures included."""
        self._wanted, self._only_grows = wanted, only_grows
        self._source, self._allow_unsafe_types = source, allow_unsafe_types

    def read(self, path: Path) -> None:
        """Read an index.json at this path.

        Raises:
            IndexFileError: the file is empty or is not JSON.
            FormatError: it is JSON, but breaks the format's rules.
            EmptyDatasetError: it has no samples.
        """
        data = path.read_bytes()
        self.shards = parse_index(data, source=self._source, allow_unsafe_types=self._allow_unsafe_types)
        self.stored, data = Generation(_digest(data).hexdigest()), before_erasure(data)
        self.digest = self.fingerprint = _digest(data).hexdigest()
        self.offered = range(len(self.shards))
        if self._wanted not in (None, Generation(self.digest)) and (shards := self._wanted.shards_in(data)):
            self.offered, self.fingerprint = shards, str(self._wanted)

    def unproven(self, cached: Path) -> Iterator[str]:
        """Files whose content may differ between a cached index and the last one read.

        A shard is the same if its entries in both indexes are equal, with checksums of its files. Where data only grow,
        and after an erasure, it is also the same without: `headrace erase` gives a shard that it changes another name.

        Args:
            cached: the cached index. If it cannot be read, all shards may differ.
        """
        old, is_erasure = ShardTable.empty(), False
        with contextlib.suppress(OSError, HeadraceError):
            data = cached.read_bytes()
            old = parse_index(data, source=str(cached), allow_unsafe_types=True)
            stored, digest = (Generation(_digest(each).hexdigest()) for each in (data, before_erasure(data)))
            is_erasure = stored != self.stored and digest == Generation(self.digest)
        for info in self.shards:
            earlier = old.find(info.name)
            is_same = earlier is not None and old[earlier].entry() == info.entry()
            for file in info.files:
                for stored in (file.raw, file.zip):
                    if stored is not None and not (is_same and (stored.hashes or self._only_grows or is_erasure)):
                        yield stored.basename
        for info in old:
            yield from (name for name in info.file_names if self.shards.find(name) is None)


_ERASED: Final = '{"erased": '


def before_erasure(data: bytes) -> bytes:
    """The bytes that a valid index would have if no row of its shards had been erased."""
    if b'"erased"' not in data:  # which spares the memory of two copies
        return data
    erased, text = _without_erased(data)
    return _with_entries(text, {name: erasure['was'] for name, erasure in erased.items()})[0].encode()


def after_erasure(data: bytes, new: Mapping[str, ShardInfo]) -> bytes:
    """The bytes of a valid index with shards that have erased rows in place of others, by the names of raw files."""
    erased, text = _without_erased(data)
    entries = {name: json.dumps(shard.entry(), sort_keys=True) for name, shard in new.items()}
    text, before = _with_entries(text, entries)
    for name, was in before.items():
        made = Erasure(new[name].erasure.rows, erased.pop(name, {'was': was})['was'])
        erased[new[name].name] = made._asdict()
    begin = skip(text, 0)
    return f'{text[:begin]}{_ERASED}{json.dumps(erased, sort_keys=True)}, {text[begin + 1 :]}'.encode()


def _without_erased(data: bytes) -> tuple[dict[str, Any], str]:
    text = data.decode()
    begin = skip(text, 0)
    if text.startswith(_ERASED, begin):
        erased, end = decode(text, begin + len(_ERASED))
        return erased, f'{text[:begin]}{{{text[end:].removeprefix(", ")}'
    if '"erased"' in text and 'erased' in (index := json.loads(text)):  # another program has written it again
        return index.pop('erased') or {}, json.dumps(index)
    return {}, text


def _with_entries(text: str, new: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The text of an index with other entries of some shards, by the names of raw files; and their entries before."""
    pieces, before, copied = list[str](), dict[str, str](), 0
    for _, value in top_level(text) if new else ():
        if isinstance(value, Elements):
            begin = skip(text, value.at + 1)
            for entry in value:
                name = entry['raw_data']['basename']
                if name in new:
                    pieces += [text[copied:begin], new[name]]
                    before[name], copied = text[begin : value.at], value.at
                begin = skip(text, skip(text, value.at) + 1)
    return ''.join([*pieces, text[copied:]]), before


def _try_patterns(text: str, source: str, allow_unsafe_types: bool) -> ShardTable | None:
    """The shards of an index that surely breaks no rule; else None."""
    try:
        shards = _parse(text, source, allow_unsafe_types, _parse_by_pattern)
    except HeadraceError:
        return None
    return shards if is_surely_valid(shards) else None


def _parse_each(elements: Elements, parser: EntryParser, builder: TableBuilder) -> None:
    for entry in elements:
        builder.add(parser.parse(entry))


def _parse(
    text: str, source: str, allow_unsafe_types: bool, read: Callable[[Elements, EntryParser, TableBuilder], None]
) -> ShardTable:
    shards: ShardTable | None = None
    version: Any = None
    meanings: Any = {}
    erased: Any = {}
    collecting = gc.isenabled()
    gc.disable()  # a large index makes millions of objects: garbage collection takes a third of the time
    try:
        for key, value in top_level(text):
            if key == 'version':
                version = value
            elif key == 'meanings':
                meanings = value
            elif key == 'erased':
                erased = value
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
        raise FormatError(f'Index file at {source} is nested too deeply: it is not an index.') from None
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
    if not isinstance(meanings, dict) or not all(
        isinstance(text, str) and text.isprintable() for text in meanings.values()
    ):
        raise FormatError(f'`meanings` of an index are texts by column, but {source} has {show(meanings)}.')
    if erased:
        shards = _with_erased(shards, erased, source)
    return shards.with_meanings(meanings) if meanings else shards


def _with_erased(shards: ShardTable, erased: Any, source: str) -> ShardTable:
    erasures: dict[int, Erasure] = {}
    for name, erasure in erased.items() if isinstance(erased, dict) else [('', erased)]:
        match erasure:
            case {'rows': [*rows], 'was': str(was)} if (shard := shards.find(name)) is not None:
                is_right = all(type(row) is int for row in rows)
                if is_right and all(map(lt, [-1, *rows], [*rows, int(shards.samples[shard])])):
                    erasures[shard] = Erasure(tuple(rows), was)
                    continue
            case _:
                pass
        raise FormatError(
            f'`erased` of an index says for the names of shards which `rows`, ascending, were erased, and what their '
            f'entry `was`, but {source} has {show({name: erasure})}.'
        )
    return replace(shards, erased=erasures)


def _corrupted(source: str, reason: str) -> str:
    return f'Index file at {source} is empty or corrupted: {reason}. Restore it, or write the dataset again.'


def _parse_by_pattern(elements: Elements, parser: EntryParser, builder: TableBuilder) -> None:
    """Read the list of shards. A FormatError gives a wrong number for the shard."""
    text = elements.text
    at = skip(text, elements.at + 1)
    if text[at : at + 1] == ']':
        elements.at = at + 1
        return
    patterns: list[_EntryPattern] = []
    tries, between = 0, ','
    while True:
        for number, pattern in enumerate(patterns):
            rows, end = pattern.run(text, at, between)
            if rows:
                builder.add_rows(pattern.kind, rows)
                patterns.insert(0, patterns.pop(number))  # the next shards probably match the same pattern
                break
        else:
            value, end = decode(text, at)
            info = parser.parse(value)
            builder.add(info)
            if tries < _MOST and end - at <= _LONGEST:
                tries += 1
                pattern = _EntryPattern.of(text[at:end], info)
                patterns += [] if pattern is None else [pattern]
        at = skip(text, end)
        if expect(text, at, ',]') == ']':
            break
        at = skip(text, at + 1)
        between = text[end:at]
    elements.at = at + 1


class _EntryPattern:
    """The text of one shard's object, with a group for each value that may differ."""

    def __init__(self, expression: re.Pattern[str], groups: list[int], kind: Kind) -> None:
        self.kind = kind
        self._match = expression.match
        self._groups = groups  # the group of each value of a row

    @classmethod
    def of(cls, text: str, info: ShardInfo) -> _EntryPattern | None:
        """The pattern of a parsed object; None if it repeats a key, or if a group's value has escapes."""
        kind = Kind.of(info)
        wanted = set(kind.slots)
        parts: list[str] = []
        slots: list[tuple[str | None, ...]] = []
        for token, path in _values(text):
            if path in wanted:
                slots.append(path)
                parts.append(_TEXT if token[0] == '"' else _NUMBER)
            else:
                parts.append(re.escape(token))
        if len(slots) != len(wanted) or set(slots) != wanted:
            return None
        pattern = cls(re.compile(''.join(parts)), [slots.index(slot) + 1 for slot in kind.slots], kind)
        rows, _ = pattern.run(text, 0, ',')
        return pattern if rows == [tuple(map(str, Kind.row(info)))] else None

    def run(self, text: str, at: int, between: str) -> tuple[list[Row], int]:
        """Match objects with `between` as their separator; returns their rows, and the position after the last one."""
        rows: list[Row] = []
        match, groups, step, end = self._match, self._groups, len(between), at
        entry = match(text, at)
        while entry is not None:
            rows.append(entry.group(*groups))
            end = entry.end()
            if len(rows) == _RUN or not text.startswith(between, end):
                break
            entry = match(text, end + step)
        return rows, end


def _values(text: str) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """The tokens of a JSON object. A value's token comes with its path of keys (None: a list)."""
    path: list[str | None] = []
    is_key = False
    for token in _TOKEN.findall(text):
        first = token[0]
        value: tuple[str | None, ...] = ()
        if first in '{[':
            path.append('' if first == '{' else None)
            is_key = first == '{'
        elif first in '}]':
            path.pop()
        elif first == ',':
            is_key = path[-1] is not None
        elif first == '"' and is_key:
            path[-1] = json.loads(token)
            is_key = False
        elif first not in ': \t\n\r':
            value = tuple(path)
        yield token, value


class NotAnObjectError(Exception):
    """The text is JSON, but not an object; the argument is its value."""


decode: Final = json.JSONDecoder().raw_decode  # (text, position) -> (value, position after it)
_SPACE: Final = ' \t\n\r'


def skip(text: str, at: int) -> int:
    """The position of the first character from `at` on that is not a space."""
    size = len(text)
    while at < size and text[at] in _SPACE:
        at += 1
    return at


def expect(text: str, at: int, wanted: str) -> str:
    """The character at `at`, which must be one of `wanted`."""
    char = text[at : at + 1]
    if not char or char not in wanted:
        raise json.JSONDecodeError(f'Expecting one of {wanted}', text, at)
    return char


def top_level(text: str) -> Iterator[tuple[str, Any]]:
    """The pairs of the outermost object; that of `shards` is its `Elements`, to be read before the next pair."""
    at = skip(text, 0)
    if at == len(text):
        raise json.JSONDecodeError('No content', text, at)
    if text[at] != '{':
        value, at = decode(text, at)
        _end(text, at)
        raise NotAnObjectError(value)
    at = skip(text, at + 1)
    if expect(text, at, '"}') == '}':
        _end(text, at + 1)
        return
    while True:
        expect(text, at, '"')
        key, at = decode(text, at)
        at = skip(text, at)
        expect(text, at, ':')
        at = skip(text, at + 1)
        if key == 'shards' and text[at : at + 1] == '[':
            elements = Elements(text, at)
            yield key, elements
            at = elements.at
        else:
            value, at = decode(text, at)
            yield key, value
        at = skip(text, at)
        if expect(text, at, ',}') == '}':
            break
        at = skip(text, at + 1)
    _end(text, at + 1)


def _end(text: str, at: int) -> None:
    at = skip(text, at)
    if at != len(text):
        raise json.JSONDecodeError('Extra data', text, at)


class Elements:
    """The elements of the JSON list at ``at``, which becomes the position after each, and at last after the list."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        text = self.text
        at = skip(text, self.at + 1)
        if _expect_any(text, at) == ']':
            self.at = at + 1
            return
        while True:
            value, self.at = decode(text, at)
            yield value
            at = skip(text, self.at)
            if expect(text, at, ',]') == ']':
                break
            at = skip(text, at + 1)
        self.at = at + 1


def _expect_any(text: str, at: int) -> str:
    if at >= len(text):
        raise json.JSONDecodeError('Expecting value', text, at)
    return text[at]
