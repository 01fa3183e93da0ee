"""A first look at data for ``headrace init``: its kind, and the columns that a first model needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.storage.resolve import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ['FirstData', 'look_at']

_TOKENS: Final = ('input_ids', 'tokens')
_LABELS: Final = ('label', 'labels', 'class', 'cls', 'target', 'fine_label', 'y')
_ROW_OF_INTEGERS: Final = re.compile(r'u?int\d+ array of shape \((\d+),\)')


@dataclass(frozen=True)
class FirstData:
    """The data of a first run."""

    place: str
    """Folder, URL or glob."""
    format: str
    """As `headrace inspect` names it; 'imagefolder': image files, which are converted before the run."""
    columns: Mapping[str, str]
    """By name, the type in a batch, such as 'int64' or 'image'."""
    tokens: str | None = None
    """Column of token ids in rows of one length."""
    image: str | None = None
    """Column of images; None without `label`."""
    label: str | None = None
    """Column of the classes' numbers."""

    @property
    def is_remote(self) -> bool:
        """Whether the data need a cache folder."""
        return local_path(self.place) is None

    @property
    def needs_conversion(self) -> bool:
        """Whether the data become shards by `headrace convert` before the run."""
        return self.format == 'imagefolder'

    @property
    def has_images(self) -> bool:
        """Whether `decode` makes tensors of a column."""
        return 'image' in self.columns.values()


def look_at(place: str) -> FirstData:
    """Find the kind of the data, as streams do; or a folder of images, which streams do not read.

    Args:
        place: folder, URL or glob.

    Raises:
        ConfigError: there are no samples, or the place breaks a rule.
        FormatError: the index or the data break a rule.
        ObjectNotFoundError: there are no data of a known format.
        StorageError: the store cannot be reached, or refuses.
    """
    from headrace.inspect.content import open_content

    try:
        content = open_content(place, None)
    except ObjectNotFoundError:
        found = _image_folder(place)
        if found is None:
            raise
        return found
    filled = np.flatnonzero(content.shards.samples)
    if not len(filled):
        raise ConfigError(f'A first run needs samples, but {place} holds none. Write some, or name other data.')
    return _found(place, content.format, content.shards[int(filled[0])].schema.kinds())


def _image_folder(place: str) -> FirstData | None:
    """A folder of image files; None if there are none."""
    from headrace.convert.inputs.files import ImageFolder, list_images
    from headrace.convert.stored_dataset import PATIENT
    from headrace.storage import StoreOptions, open_store

    store = open_store(place, StoreOptions())
    images, ledger = list_images(store, PATIENT, is_known=False)
    if not images:
        return None
    folder = ImageFolder(store, images, columns=None, retry=PATIENT, ledger=ledger)
    return _found(place, folder.kind, {'image': 'image', 'label': 'int64'})


def _found(place: str, kind: str, columns: Mapping[str, str]) -> FirstData:
    tokens = (name for name in _TOKENS if _is_row_of_tokens(columns.get(name, '')))
    images = [name for name, column in columns.items() if column == 'image']
    label = next((name for name in _LABELS if re.fullmatch(r'u?int\d+', columns.get(name, ''))), None)
    is_classified = len(images) == 1 and label is not None
    return FirstData(
        place,
        kind,
        columns,
        tokens=next(tokens, None),
        image=images[0] if is_classified else None,
        label=label if is_classified else None,
    )


def _is_row_of_tokens(kind: str) -> bool:
    """Whether values are rows of integers of one length, and long enough to predict from."""
    found = _ROW_OF_INTEGERS.fullmatch(kind)
    return found is not None and int(found[1]) > 1
