"""ImageNet (ILSVRC 2012) as MDS: ``headrace convert imagenet IN OUT``.

IN holds one of these, for each split:

- ``train/CLASS/NAME.JPEG`` and ``val/CLASS/NAME.JPEG``;
- ``ILSVRC2012_img_train.tar``, a tar with a tar for each class;
- ``val/NAME.JPEG`` or ``ILSVRC2012_img_val.tar``, with ``ILSVRC2012_devkit_t12`` or its ``.tar.gz`` for the labels.

A label is the place of a class among the sorted WordNet ids. ``classes.json`` beside the shards has these. The columns
are ``i``, the place of the image in the distribution; ``x``, its file as it is; and ``y``, the label.
"""

from __future__ import annotations

import io
import json
import re
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError, import_optional
from headrace.format.encodings.images import require_pillow
from headrace.originals.images import check_image, shrink, shuffled
from headrace.originals.members import Member, files_of, label_of, read_packed, tar_members
from headrace.storage.stores.local import mapped_path_errors

_COLUMNS: Final = {'i': 'int', 'x': 'jpeg', 'y': 'int'}
_ROW_BYTES: Final = 24  # bytes of a row besides its image: two integers, a size, an offset
_TARS: Final = {'train': 'ILSVRC2012_img_train.tar', 'val': 'ILSVRC2012_img_val.tar'}
_VAL_NAME: Final = re.compile(r'ILSVRC2012_val_(\d{8})\.JPEG')
_DEVKIT: Final = 'ILSVRC2012_devkit_t12'
_META: Final = f'{_DEVKIT}/data/meta.mat'
_TRUTH: Final = f'{_DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt'
_MOST_BYTES: Final = 1 << 26
"""Size limit of each file of the devkit."""

_Record = tuple[int, Member, int, str]
"""Place in the distribution, member, label, and what is wrong with it, if anything."""


class _Devkit(NamedTuple):
    """The classes, and the labels of the validation images."""

    classes: list[str]  # WordNet ids, sorted
    truth: list[str]  # the class of each validation image, by its number


def _read(root: Path, validate: bool, resize: int | None, quality: int, record: _Record) -> dict[str, Any]:
    place, member, label, problem = record
    if problem:
        raise FormatError(problem)
    image = member.read(root)
    if validate:
        # One of ImageNet's files is a PNG, in spite of its name. Columns of JPEGs read it, too.
        check_image(image)
    if resize is not None:
        image = shrink(image, resize, quality)
    return {'i': place, 'x': image, 'y': label}


def imagenet_records(
    root: Path, split: str, *, validate: bool, resize: int | None, quality: int, shuffle: bool
) -> RecordInputs[_Record]:
    require_pillow()
    if (resize is not None and resize < 1) or not 1 <= quality <= 100:
        raise ConfigError(
            f'`resize` is a number of pixels from 1, or None, and `quality` is 1 to 100, but got {resize} and '
            f'{quality}.'
        )
    devkit = _open_devkit(root)
    images = list(_members(root, split, devkit))
    of_devkit = devkit.classes if devkit else []
    classes = of_devkit or _train_classes(root) or sorted({name for _, name, _ in images})
    labels = {name: label for label, name in enumerate(classes)}
    if strange := [name for _, name, _ in images if name not in labels]:
        raise ConfigError(
            f'The classes of all splits of ImageNet are the same, but {split!r} of {root} has {strange[0]!r}, which '
            f'is not among the {len(classes)} others. Move it away, or correct its name.'
        )
    in_order = ((place, member, labels[name], problem) for place, (member, name, problem) in enumerate(images))
    records: list[_Record] = shuffled([*in_order], shuffle=shuffle)
    return RecordInputs(
        partial(_read, root, validate, resize, quality),
        records,
        kind='imagenet',
        columns=_COLUMNS,
        identity={'root': str(root), 'split': split, 'validate': validate, 'resize': resize, 'quality': quality},
        label=label_of,
        sizes=[_ROW_BYTES + record[1].size for record in records],
        files={'classes.json': json.dumps(classes, indent=1).encode()},
    )


def _members(root: Path, split: str, devkit: _Devkit | None) -> Iterator[tuple[Member, str, str]]:
    """Each image with its class, and what is wrong with it."""
    if (root / split).is_dir():
        classes = _class_folders(root / split)
        for name in classes:
            for member in files_of(root, f'{split}/{name}'):
                yield member, name, ''
        if not classes:
            yield from _numbered(root, files_of(root, split), split, devkit)
    elif not (root / _TARS[split]).is_file():
        raise ObjectNotFoundError(f'{root} holds neither the folder {split!r} nor {_TARS[split]}.')
    elif split == 'val':
        yield from _numbered(root, sorted(tar_members(root, _TARS[split]), key=lambda m: m.name), split, devkit)
    else:
        for tar in sorted(tar_members(root, _TARS[split]), key=lambda m: m.name):
            yield from _inner(root, tar)


def _inner(root: Path, tar: Member) -> Iterator[tuple[Member, str, str]]:
    """The images of the tar of one class."""
    name = Path(tar.name).stem
    try:
        for member in tar_members(root, tar.path, tar.begin, tar.size):
            yield member, name, ''
    except FormatError as error:
        # Only the images behind the damage are lost.
        yield tar, name, str(error)


def _numbered(
    root: Path, members: Sequence[Member], split: str, devkit: _Devkit | None
) -> Iterator[tuple[Member, str, str]]:
    """Images without folders of classes: ``ILSVRC2012_val_00000001.JPEG`` has the first label of the devkit."""
    if not members:
        return
    if split != 'val':
        raise ConfigError(
            f'The images of {split!r} have a folder for each class, but {root} has {members[0].label} outside of one. '
            f'Move it into the folder of its class.'
        )
    if devkit is None:
        raise ConfigError(
            f'The images of {split!r} in {root} have no folders of classes, so their labels are in '
            f'ILSVRC2012_devkit_t12.tar.gz. Put it there, or convert the other split only.'
        )
    for member in members:
        match = _VAL_NAME.fullmatch(Path(member.name or member.path).name)
        number, last = int(match[1]) if match else 0, len(devkit.truth)
        if 1 <= number <= last:
            yield member, devkit.truth[number - 1], ''
        else:
            problem = f'The devkit has labels of ILSVRC2012_val_00000001.JPEG to image {last}, not of this.'
            yield member, devkit.classes[0], problem


def _class_folders(folder: Path) -> list[str]:
    """Their names, sorted. A hidden folder, such as an editor's, is not a class: it would move all labels."""
    names: list[str] = []
    for path in folder.iterdir():
        with mapped_path_errors(path):  # of a link that leads nowhere
            if not path.name.startswith('.') and stat.S_ISDIR(path.stat().st_mode):
                names.append(path.name)
    return sorted(names)


def _train_classes(root: Path) -> list[str]:
    """The classes of the split 'train', if it is there."""
    if (root / 'train').is_dir():
        return _class_folders(root / 'train')
    if (root / _TARS['train']).is_file():
        return sorted(Path(member.name).stem for member in tar_members(root, _TARS['train']))
    return []


def _open_devkit(root: Path) -> _Devkit | None:
    """The devkit in the folder of the distribution, unpacked or as its tar; None if it is not there."""
    if (root / _DEVKIT).is_dir():
        return _parse_devkit((root / _META).read_bytes(), (root / _TRUTH).read_bytes(), root / _DEVKIT)
    path = root / f'{_DEVKIT}.tar.gz'
    if not path.is_file():
        return None
    meta, truth = (read_packed(path, name, _MOST_BYTES) for name in (_META, _TRUTH))
    return _parse_devkit(meta, truth, path)


def _parse_devkit(meta: bytes, truth: bytes, path: Path) -> _Devkit:
    loadmat = import_optional('scipy.io', "ImageNet's devkit needs SciPy", 'vision').loadmat
    try:
        synsets: Any = loadmat(io.BytesIO(meta), squeeze_me=True)['synsets']
        # A class has no children; a synset above the classes has.
        classes = [synset for synset in np.atleast_1d(synsets) if not int(synset['num_children'])]
        names = {int(synset['ILSVRC2012_ID']): str(synset['WNID']) for synset in classes}
        return _Devkit(sorted(names.values()), [names[int(line)] for line in truth.split()])
    except Exception as error:  # loadmat raises whatever its bytes lead to
        raise FormatError(
            f"ImageNet's devkit has synsets in meta.mat, and one of their numbers in each line of the ground truth, "
            f'but {path} cannot be read as one: {type(error).__name__}: {error}. Fetch it again.'
        ) from error
