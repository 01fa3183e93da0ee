"""Datasets of torchvision: pairs of an image and a label. An `ImageFolder` without transforms gives its files."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from headrace.convert.inputs.image_folder import ImageFolder, list_images
from headrace.storage import Retry
from headrace.storage.stores.local import LocalStore

__all__ = ['images_of', 'is_vision_dataset']


def is_vision_dataset(source: object) -> bool:
    """Whether it is one, without an import of torchvision."""
    return _is_a(source, 'VisionDataset')


def images_of(source: Any, *, columns: Collection[str] | None, limit: int | None, retry: Retry) -> ImageFolder | None:
    """The files of an `ImageFolder`, whose bytes are kept; None if it changes images, or lists them in another way."""
    if not _is_a(source, 'ImageFolder') or source.transform is not None or source.target_transform is not None:
        return None
    store = LocalStore(source.root)
    images, ledger = list_images(store, retry, is_known=True)
    found = ImageFolder(store, images, columns=columns, retry=retry, ledger=ledger)
    paths = (os.path.join(source.root, info.key) for info in images)  # noqa: PTH118 - as there
    pairs = list(zip(paths, found.labels, strict=True))
    if pairs != source.samples:
        return None
    if limit is None:
        return found
    return ImageFolder(store, images[:limit], columns=columns, retry=retry, ledger=ledger)


def _is_a(source: object, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.startswith('torchvision.') for kind in type(source).__mro__)
