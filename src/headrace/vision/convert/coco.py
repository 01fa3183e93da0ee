"""COCO (detection) as MDS: ``headrace convert coco IN OUT``.

IN holds ``annotations/instances_train2017.json`` and the images in ``train2017``; for the split 'val' likewise. Images
without a box are left out, as in MosaicML Streaming.

The columns are

- ``img``, the file as it is, and ``img_id``;
- ``htot`` and ``wtot``, height and width in pixels;
- ``bbox_sizes``, float32 of (boxes, 4): left, top, right and bottom, as parts of the width and the height;
- ``bbox_labels``, int64 of (boxes,), from 1 in the order of the categories. ``classes.json`` beside the shards has
  their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import FormatError, ObjectNotFoundError
from headrace.format.encodings.images import require_pillow
from headrace.originals.members import Member, files_of
from headrace.vision.convert import COCO as ORIGINAL
from headrace.vision.convert.images import check_image, shuffled

main = ORIGINAL.main

_COLUMNS: Final = {
    'img': 'jpeg',
    'img_id': 'int',
    'htot': 'int',
    'wtot': 'int',
    'bbox_sizes': 'ndarray:float32',
    'bbox_labels': 'ndarray:int64',
}
_ROW_BYTES: Final = 80
_BOX_BYTES: Final = 24

_Record = tuple[Member | None, int, tuple[int, int], list[list[float]], list[int], str, str]
"""Image; id; height and width; boxes (left, top, width, height); labels; name; a mistake, or ''."""


@dataclass(slots=True)
class _Image:
    file: str
    height: int
    width: int
    boxes: list[list[float]] = field(default_factory=list[list[float]])
    labels: list[int] = field(default_factory=list[int])


def _read(root: Path, validate: bool, record: _Record) -> dict[str, Any]:
    member, image_id, (height, width), boxes, labels, _, problem = record
    if member is None or problem:
        raise FormatError(problem)
    image = member.read(root)
    if validate and check_image(image) != (width, height):
        raise FormatError(f'The annotations give {width} x {height} pixels, but the image has others.')
    left, top, box_width, box_height = np.array(boxes, np.float64).T
    corners = (left / width, top / height, (left + box_width) / width, (top + box_height) / height)
    return {
        'img': image,
        'img_id': image_id,
        'htot': height,
        'wtot': width,
        'bbox_sizes': np.stack(corners, axis=1).astype(np.float32),
        'bbox_labels': np.array(labels, np.int64),
    }


def records(root: Path, split: str, *, validate: bool, shuffle: bool, year: int) -> RecordInputs[_Record]:
    require_pillow()
    path, folder = f'annotations/instances_{split}{year}.json', f'{split}{year}'
    if not (root / path).is_file():
        raise ObjectNotFoundError(f'{root} holds no {path}. Check the path, or choose another `year`.')
    files = {one.path.rpartition('/')[2]: one for one in files_of(root, folder)}
    images, classes, bad = _annotations(root / path, path)
    records: list[_Record] = []
    for image_id, image in images.items():
        member = files.get(image.file)
        if not image.boxes:
            continue
        problem = '' if member is not None else f'The folder {folder} has no such image.'
        size = (image.height, image.width)
        records.append((member, image_id, size, image.boxes, image.labels, f'{folder}/{image.file}', problem))
    records += [(None, 0, (0, 0), [], [], name, problem) for name, problem in bad]
    records = [records[number] for number in shuffled(len(records), shuffle=shuffle)]
    return RecordInputs(
        partial(_read, root, validate),
        records,
        kind='coco',
        columns=_COLUMNS,
        identity={'root': str(root), 'split': split, 'validate': validate, 'year': year},
        label=itemgetter(5),
        sizes=[
            _ROW_BYTES + _BOX_BYTES * len(boxes) + (0 if member is None else member.size)
            for member, _, _, boxes, *_ in records
        ],
        files={'classes.json': json.dumps(['background', *classes], indent=1).encode()},
    )


def _annotations(path: Path, name: str) -> tuple[dict[int, _Image], list[str], list[tuple[str, str]]]:
    """Images by id, the names of the categories, and each entry that is bad: its place, and what is wrong."""
    try:
        document: Any = json.loads(path.read_bytes())
        categories, images, boxes = (list(document[key]) for key in ('categories', 'images', 'annotations'))
        labels = {int(one['id']): label for label, one in enumerate(categories, 1)}
        classes = [str(one['name']) for one in categories]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"COCO's annotations are JSON with `categories`, `images` and `annotations`, but {path} is not: "
            f'{type(error).__name__}: {error}. Fetch it again.'
        ) from error
    found: dict[int, _Image] = {}
    bad: list[tuple[str, str]] = []
    adders = (('images', images, partial(_add_image, found)), ('annotations', boxes, partial(_add_box, found, labels)))
    for key, entries, add in adders:
        for place, entry in enumerate(entries):
            try:
                add(entry)
            except (ValueError, KeyError, TypeError, OverflowError) as error:  # noqa: PERF203 - each by itself
                bad.append((f'{name}: {key}[{place}]', f'{type(error).__name__}: {error}'))
    return found, classes, bad


def _add_image(found: dict[int, _Image], entry: Mapping[str, Any]) -> None:
    image_id, height, width = int(entry['id']), int(entry['height']), int(entry['width'])
    if image_id in found:
        raise ValueError(f'the id {image_id} is that of another image, too')
    if height < 1 or width < 1:
        raise ValueError(f'the image has {width} x {height} pixels')
    found[image_id] = _Image(str(entry['file_name']), height, width)


def _add_box(found: dict[int, _Image], labels: Mapping[int, int], entry: Mapping[str, Any]) -> None:
    image, label = found.get(int(entry['image_id'])), labels.get(int(entry['category_id']))
    if image is None or label is None:
        raise ValueError(f'no image {entry["image_id"]}, or no category {entry["category_id"]}')
    box = [float(value) for value in cast('Sequence[Any]', entry['bbox'])]
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise ValueError(f'a box is left, top, width and height, but is {box!r:.100}')
    image.boxes.append(box)
    image.labels.append(label)


if __name__ == '__main__':
    raise SystemExit(main())
