"""The devkit of ImageNet (ILSVRC 2012): its classes, and the labels of the validation images."""

from __future__ import annotations

import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.errors import FormatError, MissingDependencyError

__all__ = ['Devkit', 'open_devkit']

_FOLDER: Final = 'ILSVRC2012_devkit_t12'
_META: Final = f'{_FOLDER}/data/meta.mat'
_TRUTH: Final = f'{_FOLDER}/data/ILSVRC2012_validation_ground_truth.txt'
_MOST_BYTES: Final = 1 << 26
"""That are read of each file: a few packed bytes can unpack to more than the memory holds."""


@dataclass(frozen=True, slots=True)
class Devkit:
    """Labels by name."""

    classes: list[str]
    """WordNet ids, sorted."""
    truth: list[str]
    """The class of each validation image, by its number."""


def open_devkit(root: Path) -> Devkit | None:
    """The devkit in the folder of the distribution, unpacked or as its tar; None if it is not there.

    Raises:
        FormatError: it is damaged.
        MissingDependencyError: SciPy is not installed.
    """
    if (root / _FOLDER).is_dir():
        return _parse((root / _META).read_bytes(), (root / _TRUTH).read_bytes(), root / _FOLDER)
    path = root / f'{_FOLDER}.tar.gz'
    if not path.is_file():
        return None
    try:
        with tarfile.open(path, 'r:gz') as tar:
            files = [tar.extractfile(name) for name in (_META, _TRUTH)]
            meta, truth = (b'' if file is None else file.read(_MOST_BYTES) for file in files)
    except (tarfile.TarError, EOFError, OSError, KeyError, zlib.error) as error:
        raise FormatError(f'The devkit {path} is damaged, or none: {error}. Fetch it again.') from error
    return _parse(meta, truth, path)


def _parse(meta: bytes, truth: bytes, path: Path) -> Devkit:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingDependencyError(
            "ImageNet's devkit needs SciPy, which is not installed: pip install 'headrace[vision]'"
        ) from error
    try:
        synsets: Any = loadmat(io.BytesIO(meta), squeeze_me=True)['synsets']
        # A class has no children; a synset above the classes has.
        names = {
            int(one['ILSVRC2012_ID']): str(one['WNID'])
            for one in np.atleast_1d(synsets)
            if not int(one['num_children'])
        }
        return Devkit(sorted(names.values()), [names[int(line)] for line in truth.split()])
    except Exception as error:  # loadmat raises whatever its bytes lead to
        raise FormatError(
            f"ImageNet's devkit has synsets in meta.mat, and one of their numbers in each line of the ground truth, "
            f'but {path} cannot be read as one: {type(error).__name__}: {error}. Fetch it again.'
        ) from error
