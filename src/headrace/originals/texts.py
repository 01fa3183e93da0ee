"""C4 and the Pile as MDS, from files of JSON lines. A file is the smallest unit of work: a restart reads it again.

``headrace convert c4 IN OUT``: IN holds ``c4-train.00000-of-01024.json.gz`` and its neighbours, and
``c4-validation.00000-of-00008.json.gz``. Or its folder ``en`` does, as in the repository allenai/c4. The columns are
``text``, ``timestamp`` and ``url``. The splits of the new dataset are 'train' and 'val'.

``headrace convert pile IN OUT``: IN holds ``train/00.jsonl.zst`` to ``train/29.jsonl.zst``, ``val.jsonl.zst`` and
``test.jsonl.zst``, or these files unpacked: ``train/00.jsonl``. The columns are ``text`` and ``pile_set_name``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from headrace.convert.inputs.records import BadRow, RecordInputs
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.errors.redaction import logger_of
from headrace.originals.members import Member, files_of
from headrace.sources.line_records import lines_of
from headrace.sources.ranges import algorithm_of, unpacked

_SampleOf: TypeAlias = 'Callable[[Mapping[str, Any]], dict[str, Any]]'
_READ: Final = 1 << 20
_UNPACKED: Final = 3  # bytes of text for a compressed byte, about
_C4_NAMES: Final = {'train': 'train', 'val': 'validation'}
_C4_FILE: Final = re.compile(r'c4-(\w+)\.(\d{5})-of-(\d{5})\.json(\.gz)?')
_C4_COLUMNS: Final = ('text', 'timestamp', 'url')
_PILE_ENDINGS: Final = ('.jsonl.zst', '.jsonl')
_log = logger_of(__name__)


def c4_records(root: Path, split: str) -> RecordInputs[Member]:
    members: list[Member] = []
    for folder in ('.', 'en'):
        if not members and (root / folder).is_dir():
            names = ((member, _C4_FILE.fullmatch(Path(member.path).name)) for member in files_of(root, folder))
            members = [member for member, name in names if name and name[1] == _C4_NAMES[split]]
    if not members:
        raise ObjectNotFoundError(
            f'{root} holds no file c4-{_C4_NAMES[split]}.NNNNN-of-NNNNN.json.gz, and neither does its folder en.'
        )
    total = int(members[0].path.split('-of-')[1][:5])
    if len(members) > total:
        raise ConfigError(
            f'A split of C4 has {total} files, but {root} holds {len(members)} of {_C4_NAMES[split]}, some of them '
            f'twice: packed and unpacked, or of another copy. Move these away.'
        )
    if len(members) < total:
        _log.warning('The split %s of C4 has %s files, but %s holds %s of them.', split, total, root, len(members))
    return _json_lines(root, members, _c4_sample, kind='c4', columns=_C4_COLUMNS, split=split)


def _c4_sample(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _text_of(record, name) for name in _C4_COLUMNS}


def pile_records(root: Path, split: str) -> RecordInputs[Member]:
    """Those of all files in the folder 'train', or of the one file beside it for another split."""
    is_train = split == 'train'
    folder = 'train/' if is_train else ''
    listed = files_of(root, folder or '.') if (root / folder).is_dir() else []
    packed, plain = (
        [file for file in listed if file.path.endswith(ending) and (is_train or file.path == f'{split}{ending}')]
        for ending in _PILE_ENDINGS
    )
    if not packed and not plain:
        raise ObjectNotFoundError(f'{root} holds no file {folder or split}{"NN" if folder else ""}.jsonl.zst.')
    if packed and plain:
        raise ConfigError(
            f'Files of a split of the Pile are packed or not, but {root} has {packed[0].path} and {plain[0].path}, '
            f'which may have the same documents. Move some of them away.'
        )
    columns = ('text', 'pile_set_name')
    return _json_lines(root, packed or plain, _pile_sample, kind='pile', columns=columns, split=split)


def _pile_sample(record: Mapping[str, Any]) -> dict[str, Any]:
    meta = record.get('meta')
    if not isinstance(meta, dict):
        raise FormatError(f'`meta` of a record is an object with `pile_set_name`, but is a {type(meta).__name__}.')
    return {'text': _text_of(record, 'text'), 'pile_set_name': _text_of(meta, 'pile_set_name')}


def _text_of(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        has = f'a {type(value).__name__}' if key in record else f'missing among {sorted(record)}'
        raise FormatError(f'`{key}` of a record is text, but is {has:.200}.')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f'`{key}` of a record is text of Unicode, but has a lone surrogate: {error}.') from None
    return value


def _json_lines(
    root: Path, members: Sequence[Member], sample_of: _SampleOf, *, kind: str, columns: Sequence[str], split: str
) -> RecordInputs[Member]:
    """Files of JSON lines, an input each. Broken lines, and the rest of a broken file, are left out and reported."""
    return RecordInputs(
        partial(_read, root, sample_of),
        members,
        kind=kind,
        columns=dict.fromkeys(columns, 'str'),
        identity={'root': str(root), 'split': split},
        label=attrgetter('label'),
        sizes=[member.size * (_UNPACKED if algorithm_of(member.path) else 1) for member in members],
        one_row=False,
    )


def _read(root: Path, sample_of: _SampleOf, member: Member) -> Iterator[dict[str, Any] | BadRow]:
    number = 0
    try:
        for line in lines_of(read_chunks(root / member.path), member.path):
            number += 1
            if line.isspace():
                continue
            try:
                yield sample_of(_record(line))
            except FormatError as error:
                yield BadRow(f'line {number}', error)
    except FormatError as error:
        yield BadRow(f'after line {number}', error)


def _record(line: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(line.decode('utf-8-sig'))
    except (ValueError, RecursionError) as error:
        raise FormatError(f'A line is JSON, but this one is not: {error}.') from None
    if not isinstance(record, dict):
        raise FormatError(f'A line is an object of JSON, but is a {type(record).__name__}.')
    return cast('Mapping[str, Any]', record)


def read_chunks(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked, in pieces; those before damage are given."""
    with open(path, 'rb', buffering=0) as file:
        yield from unpacked(iter(lambda: file.read(_READ), b''), path.name, path.name, limit=sys.maxsize)[1]
