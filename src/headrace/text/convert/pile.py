"""The Pile as MDS: ``headrace convert pile IN OUT``.

IN holds ``train/00.jsonl.zst`` to ``train/29.jsonl.zst``, ``val.jsonl.zst`` and ``test.jsonl.zst``, or these files
unpacked: ``train/00.jsonl``. The columns are ``text`` and ``pile_set_name``. A file is the smallest unit of work: a
restart reads unfinished files again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.originals.members import Member, files_of
from headrace.text.convert import PILE as ORIGINAL
from headrace.text.convert.json_lines import json_lines, text_of

main = ORIGINAL.main

_COLUMNS: Final = {'text': 'str', 'pile_set_name': 'str'}
_ENDINGS: Final = ('.jsonl.zst', '.jsonl')


def records(root: Path, split: str) -> RecordInputs[Member]:
    folder = f'{split}/' if split == 'train' else ''
    listed = files_of(root, folder or '.') if (root / folder).is_dir() else []
    found = {
        ending: [member for member in listed if member.path.endswith(ending) and _is_of(split, member.path, ending)]
        for ending in _ENDINGS
    }
    members = [member for some in found.values() for member in some]
    if not members:
        raise ObjectNotFoundError(f'{root} holds no file {folder or split}{"NN" if folder else ""}.jsonl.zst.')
    if all(found.values()):
        raise ConfigError(
            f'Files of a split of the Pile are packed or not, but {root} has {found[_ENDINGS[0]][0].path} and '
            f'{found[_ENDINGS[1]][0].path}, which may have the same documents. Move some of them away.'
        )
    return json_lines(root, members, _sample, kind='pile', columns=_COLUMNS, split=split)


def _is_of(split: str, path: str, ending: str) -> bool:
    """Whether a file belongs to a split: all in the folder 'train', and one beside it for each other."""
    return split == 'train' or Path(path).name == f'{split}{ending}'


def _sample(record: Mapping[str, Any]) -> dict[str, Any]:
    meta = record.get('meta')
    if not isinstance(meta, dict):
        raise FormatError(f'`meta` of a record is an object with `pile_set_name`, but is a {type(meta).__name__}.')
    return {'text': text_of(record, 'text'), 'pile_set_name': text_of(meta, 'pile_set_name')}


if __name__ == '__main__':
    raise SystemExit(main())
