"""Converters of known datasets of images. Each module has the description `ORIGINAL`, and is a program.

The descriptions are here. Their import loads no numpy.
"""

from __future__ import annotations

from typing import Final

from headrace.originals import Option, Original, flag

__all__ = ['ADE20K', 'CIFAR10', 'COCO', 'IMAGENET']


def _side(text: str) -> int | None:
    return int(text) or None


_VALIDATE: Final = Option(
    'validate', flag, True, '1 to read each image through, so that a broken one is left out; 0 to trust'
)
_RESIZE: Final = Option(
    'resize', _side, None, 'pixels of the shorter side at most; larger images are encoded anew as JPEG'
)
_QUALITY: Final = Option('quality', int, 95, 'quality of JPEGs that --resize encodes, 1 to 100')
_SHUFFLE: Final = Option(
    'shuffle', flag, True, '1 to write the records in a fixed shuffled order; 0 to keep that of the files'
)

ADE20K: Final = Original(
    'ade20k',
    'ADE20K (scene parsing): the folders images and annotations of ADEChallengeData2016',
    'headrace.vision.convert.ade20k',
    splits=('train', 'val'),
    options=(_VALIDATE, _SHUFFLE),
    size_limit=1 << 22,
    reader='StreamingADE20K',
)
"""ADE20K."""

CIFAR10: Final = Original(
    'cifar10',
    'CIFAR-10: cifar-10-python.tar.gz, or its folder cifar-10-batches-py',
    'headrace.vision.convert.cifar10',
    splits=('train', 'val'),
    size_limit=1 << 20,
    reader='StreamingCIFAR10',
)
"""CIFAR-10."""

COCO: Final = Original(
    'coco',
    'COCO (detection): annotations/instances_train2017.json and the images in train2017; for val likewise',
    'headrace.vision.convert.coco',
    splits=('train', 'val'),
    options=(_VALIDATE, _SHUFFLE, Option('year', int, 2017, 'year in the names of folders and annotations')),
    size_limit=1 << 25,
    reader='StreamingCOCO',
)
"""COCO."""

IMAGENET: Final = Original(
    'imagenet',
    'ImageNet (ILSVRC 2012): folders train/CLASS and val/CLASS, or the tars of the distribution with its devkit',
    'headrace.vision.convert.imagenet',
    splits=('train', 'val'),
    options=(_VALIDATE, _RESIZE, _QUALITY, _SHUFFLE),
    reader='StreamingImageNet',
)
"""ImageNet (ILSVRC 2012)."""
