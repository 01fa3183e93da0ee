"""ADE20K (the scene parsing benchmark) as MDS: ``headrace convert ade20k IN OUT``.

IN holds ``images`` and ``annotations``, or the folder ``ADEChallengeData2016`` with both. ``images/training/NAME.jpg``
belongs to ``annotations/training/NAME.png``; the split 'val' is in ``validation``.

The columns are ``uid``, the eight digits of the name; ``x``, the file of the scene as it is; and ``y``, that of its
annotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import FormatError
from headrace.format.encodings.images import require_pillow
from headrace.originals.members import Member, files_of
from headrace.vision.convert import ADE20K as ORIGINAL
from headrace.vision.convert.images import check_image, shuffled

main = ORIGINAL.main

_COLUMNS: Final = {'uid': 'bytes', 'x': 'jpeg', 'y': 'png'}
_ROW_BYTES: Final = 32
_FOLDER: Final = 'ADEChallengeData2016'
_SPLITS: Final = {'train': 'training', 'val': 'validation'}
_LEFT_OUT: Final = frozenset({'00001701', '00003020', '00008455', '00013508'})
"""Scenes of the training split that MosaicML Streaming leaves out as damaged."""

_Record = tuple[str, Member | None, Member | None, str]
"""Name, scene, annotation, and what is wrong with them, if anything."""


def _read(root: Path, validate: bool, record: _Record) -> dict[str, Any]:
    name, scene, annotation, problem = record
    if scene is None or annotation is None or problem:
        raise FormatError(problem)
    x, y = scene.read(root), annotation.read(root)
    if validate:
        sizes = check_image(x), check_image(y, kinds=('PNG',))
        if sizes[0] != sizes[1]:
            raise FormatError(
                f'A scene and its annotation have one size, but these have {sizes[0]} and {sizes[1]} pixels.'
            )
    return {'uid': name.rpartition('_')[2].encode(), 'x': x, 'y': y}


def records(root: Path, split: str, *, validate: bool, shuffle: bool) -> RecordInputs[_Record]:
    require_pillow()
    base = f'{_FOLDER}/' if (root / _FOLDER).is_dir() else ''
    scenes = _by_name(files_of(root, f'{base}images/{_SPLITS[split]}'), '.jpg')
    annotations = _by_name(files_of(root, f'{base}annotations/{_SPLITS[split]}'), '.png')
    records: list[_Record] = []
    for name in sorted({*scenes, *annotations}):
        scene, annotation, problem = scenes.get(name), annotations.get(name), ''
        if scene is None or annotation is None:
            problem = f'A scene has an annotation of its name, but {name} has no {"scene" if scene is None else "one"}.'
        elif split == 'train' and name.rpartition('_')[2] in _LEFT_OUT:
            problem = 'This scene of the distribution is known as damaged.'
        records.append((name, scene, annotation, problem))
    records = [records[number] for number in shuffled(len(records), shuffle=shuffle)]
    return RecordInputs(
        partial(_read, root, validate),
        records,
        kind='ade20k',
        columns=_COLUMNS,
        identity={'root': str(root), 'split': split, 'validate': validate},
        label=_label,
        sizes=[_ROW_BYTES + sum(file.size for file in record[1:3] if isinstance(file, Member)) for record in records],
    )


def _by_name(members: Sequence[Member], suffix: str) -> dict[str, Member]:
    return {PurePosixPath(one.path).stem: one for one in members if one.path.lower().endswith(suffix)}


def _label(record: _Record) -> str:
    found = record[1] or record[2]
    return record[0] if found is None else found.label


if __name__ == '__main__':
    raise SystemExit(main())
