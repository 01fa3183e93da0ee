"""Files of JSON lines, compressed or not: the samples of each, and the broken lines between them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from headrace.convert.inputs.records import BadRow, RecordInputs
from headrace.errors import FormatError
from headrace.originals.members import Member
from headrace.sources.line_records import lines_of
from headrace.sources.ranges import algorithm_of, unpacked

_SampleOf: TypeAlias = 'Callable[[Mapping[str, Any]], dict[str, Any]]'
_READ: Final = 1 << 20
_UNPACKED: Final = 3  # bytes of text for a compressed byte, about


def read_chunks(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked, in pieces; those before damage are given."""
    with open(path, 'rb', buffering=0) as file:
        yield from unpacked(iter(lambda: file.read(_READ), b''), path.name, path.name, limit=sys.maxsize)[1]


def text_of(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        has = f'a {type(value).__name__}' if key in record else f'missing among {sorted(record)}'
        raise FormatError(f'`{key}` of a record is text, but is {has:.200}.')
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FormatError(f'`{key}` of a record is text of Unicode, but has a lone surrogate: {error}.') from None
    return value


def _read(root: Path, sample_of: _SampleOf, member: Member) -> Iterator[dict[str, Any] | BadRow]:
    number = 0
    try:
        for line in lines_of(read_chunks(root / member.path), member.path):
            number += 1
            if line.isspace():
                continue
            try:
                yield _sample(sample_of, line)
            except FormatError as error:
                yield BadRow(f'line {number}', error)
    except FormatError as error:
        yield BadRow(f'after line {number}', error)


def _sample(sample_of: _SampleOf, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode('utf-8-sig'))
    except (ValueError, RecursionError) as error:
        raise FormatError(f'A line is JSON, but this one is not: {error}.') from None
    if not isinstance(record, dict):
        raise FormatError(f'A line is an object of JSON, but is a {type(record).__name__}.')
    return sample_of(cast('Mapping[str, Any]', record))


def json_lines(
    root: Path, members: Sequence[Member], sample_of: _SampleOf, *, kind: str, columns: Mapping[str, str], split: str
) -> RecordInputs[Member]:
    """Files of JSON lines, an input each. Broken lines, and the rest of a broken file, are left out and reported."""
    return RecordInputs(
        partial(_read, root, sample_of),
        members,
        kind=kind,
        columns=columns,
        identity={'root': str(root), 'split': split},
        label=attrgetter('label'),
        sizes=[member.size * (_UNPACKED if algorithm_of(member.path) else 1) for member in members],
        one_row=False,
    )
