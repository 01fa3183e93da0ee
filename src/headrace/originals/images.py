"""ADE20K and COCO as MDS, and what the datasets of images share: checks, a fixed shuffled order, smaller copies.

``headrace convert ade20k IN OUT``: IN holds ``images`` and ``annotations``, or the folder ``ADEChallengeData2016`` with
both. ``images/training/NAME.jpg`` belongs to ``annotations/training/NAME.png``; the split 'val' is in ``validation``.
The columns are ``uid``, the eight digits of the name; ``x``, the file of the scene as it is; and ``y``, that of its
annotation.

``headrace convert coco IN OUT``: IN holds ``annotations/instances_train2017.json`` and the images in ``train2017``; for
the split 'val' likewise. Images without a box are left out, as in MosaicML Streaming. The columns are

- ``img``, the file as it is, and ``img_id``;
- ``htot`` and ``wtot``, height and width in pixels;
- ``bbox_sizes``, float32 of (boxes, 4): left, top, right and bottom, as parts of the width and the height;
- ``bbox_labels``, int64 of (boxes,), from 1 in the order of the categories. ``classes.json`` beside the shards has
  their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import FormatError, ObjectNotFoundError
from headrace.format.encodings.images import in_mode, require_pillow
from headrace.originals.members import Member, files_of, label_of

T = TypeVar('T')
_KINDS: Final = ('JPEG', 'PNG')  # formats that are tried: for some others, Pillow runs a program on the file


def shuffled(records: Sequence[T], *, shuffle: bool) -> list[T]:
    """The records in the order in which they are written."""
    # A seed of its own, so that a restart and any number of workers have the same order.
    order = np.random.default_rng(0).permutation(len(records)).tolist() if shuffle else range(len(records))
    return [records[number] for number in order]


def check_image(data: bytes, *, kinds: tuple[str, ...] = _KINDS) -> tuple[int, int]:
    """Width and height of an image, read through. An eighth of a JPEG's size shows the same damage in half the time."""
    with _reading(data), require_pillow().open(BytesIO(data), formats=kinds) as image:
        size: tuple[int, int] = image.size
        image.draft(None, (1, 1))
        image.load()
    return size


@contextmanager
def _reading(data: bytes) -> Generator[None]:
    try:
        yield
    except FormatError:
        raise
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error, ValueError and others
        # Pillow's message of an unknown kind has the address of an object. A report is the same in each run.
        is_unknown = type(error).__name__ == 'UnidentifiedImageError'
        reason = 'they are no image of this kind' if is_unknown else f'{type(error).__name__}: {error}'
        raise FormatError(
            f'An image must be whole, but {len(data)} bytes that begin with {data[:8]!r} cannot be read: {reason}.'
        ) from error


def shrink(data: bytes, side: int, quality: int) -> bytes:
    """The image with a shorter side of at most `side` pixels, as a JPEG; the same bytes if it is not larger."""
    with _reading(data), require_pillow().open(BytesIO(data), formats=_KINDS) as image:
        if min(image.size) <= side:
            return data
        scale = side / min(image.size)
        size = tuple(max(1, round(length * scale)) for length in image.size)
        # EXIF says how a camera was held.
        return as_jpeg(image, size, quality, exif=image.info.get('exif', b''))


def as_jpeg(image: Any, size: tuple[int, ...], quality: int, *, exif: bytes = b'') -> bytes:
    """An image of Pillow as a JPEG of `size`, width and height."""
    out = BytesIO()
    in_mode(image, 'RGB').resize(size).save(out, format='JPEG', quality=quality, exif=exif)
    return out.getvalue()


# ADE20K

_LEFT_OUT: Final = frozenset({'00001701', '00003020', '00008455', '00013508'})
"""Scenes of the training split that MosaicML Streaming leaves out as damaged."""
_Scene = tuple[str, Member | None, Member | None, str]
"""Name, scene, annotation, and what is wrong with them, if anything."""


def ade20k_records(root: Path, split: str, *, validate: bool, shuffle: bool) -> RecordInputs[_Scene]:
    require_pillow()
    folder = {'train': 'training', 'val': 'validation'}[split]
    base = 'ADEChallengeData2016/' if (root / 'ADEChallengeData2016').is_dir() else ''
    scenes = _by_name(files_of(root, f'{base}images/{folder}'), '.jpg')
    annotations = _by_name(files_of(root, f'{base}annotations/{folder}'), '.png')
    records: list[_Scene] = []
    for name in sorted({*scenes, *annotations}):
        scene, annotation, problem = scenes.get(name), annotations.get(name), ''
        if scene is None or annotation is None:
            problem = f'A scene has an annotation of its name, but {name} has no {"scene" if scene is None else "one"}.'
        elif split == 'train' and name.rpartition('_')[2] in _LEFT_OUT:
            problem = 'This scene of the distribution is known as damaged.'
        records.append((name, scene, annotation, problem))
    records = shuffled(records, shuffle=shuffle)
    return RecordInputs(
        partial(_read_scene, root, validate),
        records,
        kind='ade20k',
        columns={'uid': 'bytes', 'x': 'jpeg', 'y': 'png'},
        identity={'root': str(root), 'split': split, 'validate': validate},
        label=label_of,
        sizes=[32 + sum(file.size for file in record[1:3] if isinstance(file, Member)) for record in records],
    )


def _by_name(members: Iterable[Member], suffix: str) -> dict[str, Member]:
    return {PurePosixPath(member.path).stem: member for member in members if member.path.lower().endswith(suffix)}


def _read_scene(root: Path, validate: bool, record: _Scene) -> dict[str, Any]:
    name, scene, annotation, problem = record
    if scene is None or annotation is None or problem:
        raise FormatError(problem)
    x, y = scene.read(root), annotation.read(root)
    if validate and (sizes := (check_image(x), check_image(y, kinds=('PNG',)))) and sizes[0] != sizes[1]:
        raise FormatError(f'A scene and its annotation have one size, but these have {sizes[0]} and {sizes[1]} pixels.')
    return {'uid': name.rpartition('_')[2].encode(), 'x': x, 'y': y}


# COCO

_COCO_COLUMNS: Final = {
    'img': 'jpeg',
    'img_id': 'int',
    'htot': 'int',
    'wtot': 'int',
    'bbox_sizes': 'ndarray:float32',
    'bbox_labels': 'ndarray:int64',
}
_Photograph = tuple[Member | None, int, tuple[int, int], list[list[float]], list[int], str, str]
"""Image; id; height and width; boxes (left, top, width, height); labels; name; a mistake, or ''."""


class _Image(NamedTuple):
    file: str
    height: int
    width: int
    boxes: list[list[float]]
    labels: list[int]


def coco_records(root: Path, split: str, *, validate: bool, shuffle: bool, year: int) -> RecordInputs[_Photograph]:
    require_pillow()
    path, folder = f'annotations/instances_{split}{year}.json', f'{split}{year}'
    if not (root / path).is_file():
        raise ObjectNotFoundError(f'{root} holds no {path}. Check the path, or choose another `year`.')
    files = {PurePosixPath(member.path).name: member for member in files_of(root, folder)}
    images, classes, bad = _annotations(root / path, path)
    records: list[_Photograph] = []
    for image_id, image in images.items():
        if image.boxes:
            member, size = files.get(image.file), (image.height, image.width)
            problem = '' if member is not None else f'The folder {folder} has no such image.'
            records.append((member, image_id, size, image.boxes, image.labels, f'{folder}/{image.file}', problem))
    records += [(None, 0, (0, 0), [], [], name, problem) for name, problem in bad]
    records = shuffled(records, shuffle=shuffle)
    return RecordInputs(
        partial(_read_photograph, root, validate),
        records,
        kind='coco',
        columns=_COCO_COLUMNS,
        identity={'root': str(root), 'split': split, 'validate': validate, 'year': year},
        label=itemgetter(5),
        sizes=[80 + 24 * len(record[3]) + (0 if record[0] is None else record[0].size) for record in records],
        files={'classes.json': json.dumps(['background', *classes], indent=1).encode()},
    )


def _read_photograph(root: Path, validate: bool, record: _Photograph) -> dict[str, Any]:
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


def _annotations(path: Path, name: str) -> tuple[dict[int, _Image], list[str], list[tuple[str, str]]]:
    """Images by id, the names of the categories, and each entry that is bad: its place, and what is wrong."""
    try:
        document: Any = json.loads(path.read_bytes())
        categories, entries, boxes = (list(document[key]) for key in ('categories', 'images', 'annotations'))
        labels = {int(category['id']): label for label, category in enumerate(categories, 1)}
        classes = [str(category['name']) for category in categories]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"COCO's annotations are JSON with `categories`, `images` and `annotations`, but {path} is not: "
            f'{type(error).__name__}: {error}. Fetch it again.'
        ) from error
    images: dict[int, _Image] = {}
    bad: list[tuple[str, str]] = []
    adders = (
        ('images', entries, partial(_add_image, images)),
        ('annotations', boxes, partial(_add_box, images, labels)),
    )
    for key, values, add in adders:
        for place, entry in enumerate(values):
            try:
                add(entry)
            except (ValueError, KeyError, TypeError, OverflowError) as error:  # noqa: PERF203 - each by itself
                bad.append((f'{name}: {key}[{place}]', f'{type(error).__name__}: {error}'))
    return images, classes, bad


def _add_image(images: dict[int, _Image], entry: Mapping[str, Any]) -> None:
    image_id, height, width = int(entry['id']), int(entry['height']), int(entry['width'])
    if image_id in images:
        raise ValueError(f'the id {image_id} is that of another image, too')
    if height < 1 or width < 1:
        raise ValueError(f'the image has {width} x {height} pixels')
    images[image_id] = _Image(str(entry['file_name']), height, width, [], [])


def _add_box(images: dict[int, _Image], labels: Mapping[int, int], entry: Mapping[str, Any]) -> None:
    image, label = images.get(int(entry['image_id'])), labels.get(int(entry['category_id']))
    if image is None or label is None:
        raise ValueError(f'no image {entry["image_id"]}, or no category {entry["category_id"]}')
    box = [float(value) for value in cast('Sequence[Any]', entry['bbox'])]
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise ValueError(f'a box is left, top, width and height, but is {box!r:.100}')
    image.boxes.append(box)
    image.labels.append(label)
