"""CIFAR-10 as MDS: ``headrace convert cifar10 IN OUT``.

IN holds ``cifar-10-python.tar.gz``, or what it contains: the folder ``cifar-10-batches-py`` with five batches to train,
and one to test, which becomes the split 'val'. A batch is a pickle, which is read without running code.

The columns are ``i``, the place of the image in its split; ``x``, the image; and ``y``, its class. ``classes.json``
beside the shards names the classes. The order is that of the distribution, which is shuffled already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from headrace.convert.inputs.records import BadRow, RecordInputs
from headrace.errors import FormatError, ObjectNotFoundError
from headrace.format.encodings.images import require_pillow
from headrace.originals.inert_pickle import read_inert_pickle
from headrace.originals.members import Member, label_of, read_packed

_COLUMNS: Final = {'i': 'int', 'x': 'pil', 'y': 'int'}
_FOLDER: Final = 'cifar-10-batches-py'
_ARCHIVE: Final = 'cifar-10-python.tar.gz'
_BATCHES: Final = {'train': tuple(f'data_batch_{number}' for number in range(1, 6)), 'val': ('test_batch',)}
_META: Final = 'batches.meta'
_ROWS: Final = 10_000  # images of a batch
_PIXELS: Final = 32 * 32 * 3
_ROW_BYTES: Final = _PIXELS + 47
_CLASSES: Final = 10
_MOST_BYTES: Final = 1 << 28  # of a file of the archive: a batch has 31 MB

_Record = tuple[int, Member]  # number of the batch in its split, and its file


def _read(root: Path, record: _Record) -> Iterator[Mapping[str, Any] | BadRow]:
    number, member = record
    batch = read_inert_pickle(_bytes(root, member))
    data, labels = batch.get('data'), batch.get('labels')
    shape = data.shape if isinstance(data, np.ndarray) else None
    count = len(cast('list[Any]', labels)) if isinstance(labels, list) else None
    if not isinstance(data, np.ndarray) or shape != (count, _PIXELS) or len(data) > _ROWS:
        raise FormatError(
            f'A batch of CIFAR-10 has `data` of (rows, {_PIXELS}) bytes with at most {_ROWS} rows, and as many '
            f'`labels`, but this one has {shape} and {count}. Fetch it again.'
        )
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    make = require_pillow().fromarray
    for row, label in enumerate(cast('list[Any]', labels)):
        if not isinstance(label, int) or not 0 <= label < _CLASSES:
            shown = label if isinstance(label, int) else f'of type {type(label).__name__}'
            yield BadRow(f'row {row}', FormatError(f'A label is 0 to {_CLASSES - 1}, but is {shown}.'))
        else:
            yield {'i': number * _ROWS + row, 'x': make(np.ascontiguousarray(images[row])), 'y': label}


def cifar10_records(root: Path, split: str) -> RecordInputs[_Record]:
    require_pillow()
    folder = _FOLDER if (root / _FOLDER).is_dir() else '.'
    names = _BATCHES[split]
    if any((root / folder / name).is_file() for name in names):
        # A batch that is missing has no bytes, and is reported.
        members = [_file(root, f'{folder}/{name}' if folder != '.' else name) for name in names]
        sizes = [member.size for member in members]
        meta = _file(root, f'{folder}/{_META}')
    elif (root / _ARCHIVE).is_file():
        archive = _file(root, _ARCHIVE)
        members = [archive._replace(name=f'{_FOLDER}/{name}') for name in names]
        sizes = [_ROWS * _ROW_BYTES] * len(members)
        meta = archive._replace(name=f'{_FOLDER}/{_META}')
    else:
        raise ObjectNotFoundError(f'{root} holds neither {_ARCHIVE} nor {_FOLDER}/{names[0]}. Check the path.')
    return RecordInputs(
        partial(_read, root),
        list(enumerate(members)),
        kind='cifar10',
        columns=_COLUMNS,
        identity={'root': str(root), 'split': split},
        label=label_of,
        sizes=sizes,
        one_row=False,
        files={'classes.json': json.dumps(_classes(root, meta), indent=1).encode()},
    )


def _file(root: Path, path: str) -> Member:
    try:
        return Member.of(path, (root / path).stat())
    except FileNotFoundError:
        return Member(path, 0, 0, '', '')


def _bytes(root: Path, member: Member) -> bytes:
    return read_packed(root / member.path, member.name, _MOST_BYTES) if member.name else member.read(root)


def _classes(root: Path, meta: Member) -> list[str]:
    """The names of the classes; without them, their numbers."""
    try:
        names = read_inert_pickle(_bytes(root, meta)).get('label_names')
    except (FormatError, FileNotFoundError):
        names = None
    texts = [
        name.decode('utf-8', 'replace') if isinstance(name, bytes) else name
        for name in (cast('list[Any]', names) if isinstance(names, list) else ())
    ]
    is_whole = len(texts) == _CLASSES and all(isinstance(name, str) for name in texts)
    return texts if is_whole else [str(number) for number in range(_CLASSES)]
