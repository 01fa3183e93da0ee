"""C4 as MDS: ``headrace convert c4 IN OUT``.

IN holds ``c4-train.00000-of-01024.json.gz`` and its neighbours, and ``c4-validation.00000-of-00008.json.gz``. Or its
folder ``en`` does, as in the repository allenai/c4. The columns are ``text``, ``timestamp`` and ``url``. The splits of
the new dataset are 'train' and 'val'. A file is the smallest unit of work: a restart reads unfinished files again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.originals.members import Member, files_of
from headrace.redaction import logger_of
from headrace.text.convert import C4 as ORIGINAL
from headrace.text.convert.json_lines import json_lines, text_of

main = ORIGINAL.main

_COLUMNS: Final = {'text': 'str', 'timestamp': 'str', 'url': 'str'}
_NAMES: Final = {'train': 'train', 'val': 'validation'}
_FILE: Final = re.compile(r'c4-(\w+)\.(\d{5})-of-(\d{5})\.json(\.gz)?')
_log = logger_of(__name__)


def records(root: Path, split: str) -> RecordInputs[Member]:
    found: list[Member] = []
    for folder in ('.', 'en'):
        if not found and (root / folder).is_dir():
            names = ((member, _FILE.fullmatch(Path(member.path).name)) for member in files_of(root, folder))
            found = [member for member, name in names if name and name[1] == _NAMES[split]]
    if not found:
        raise ObjectNotFoundError(
            f'{root} holds no file c4-{_NAMES[split]}.NNNNN-of-NNNNN.json.gz, and neither does its folder en.'
        )
    total = int(found[0].path.split('-of-')[1][:5])
    if len(found) > total:
        raise ConfigError(
            f'A split of C4 has {total} files, but {root} holds {len(found)} of {_NAMES[split]}, some of them twice: '
            f'packed and unpacked, or of another copy. Move these away.'
        )
    if len(found) < total:
        _log.warning('The split %s of C4 has %s files, but %s holds %s of them.', split, total, root, len(found))
    return json_lines(root, found, _sample, kind='c4', columns=_COLUMNS, split=split)


def _sample(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: text_of(record, name) for name in _COLUMNS}


if __name__ == '__main__':
    raise SystemExit(main())
