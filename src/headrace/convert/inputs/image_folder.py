"""Folders of images by class, as torchvision's ImageFolder reads them: ``ROOT/CLASS/.../NAME.jpg``.

The classes are the sorted names of the first folders, and a label is a place among them: as in torchvision. So is the
order of the images. The bytes of the files are kept, so nothing is lost. The column ``image`` is ``jpeg`` if all files
are JPEGs, else ``png``; both read images of all kinds. ``classes.json`` beside the shards has the names by label.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import xxhash

from headrace.convert.inputs.samples import classes_file
from headrace.convert.protocol import Sizes
from headrace.convert.record import get_bytes
from headrace.errors import ConfigError, FormatError
from headrace.format.file_bytes import read_file
from headrace.sources.formats import formats_in, one_format
from headrace.sources.ledger import Ledger, ledger_of
from headrace.storage import ObjectInfo, Retry, Store
from headrace.storage.stores.local import LocalStore

__all__ = ['ImageFolder', 'is_image', 'list_images']

_JPEG: Final = ('.jpg', '.jpeg')
_EXTENSIONS: Final = (*_JPEG, '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp')
"""Those of torchvision."""
_HEADS: Final = (
    b'\xff\xd8\xff',
    b'\x89PNG',
    b'BM',
    b'II*\0',
    b'MM\0*',
    b'RIFF',
    b'P1',
    b'P2',
    b'P3',
    b'P4',
    b'P5',
    b'P6',
)
"""First bytes of images of these extensions."""
_SPLITS: Final = frozenset({'train', 'training', 'val', 'valid', 'validation', 'test', 'testing'})
_REQUESTS: Final = 16
"""Images that one process requests from a store at the same time."""
_ROW_BYTES: Final = 16
"""Bytes of a row besides its image and its path: label, sizes, and offset."""


def is_image(key: str) -> bool:
    """Whether a file counts as an image, by its extension."""
    return key.lower().endswith(_EXTENSIONS)


def list_images(store: Store, retry: Retry, *, is_known: bool) -> tuple[list[ObjectInfo], Ledger]:
    """The images of a tree, in torchvision's order, and what was left out.

    Args:
        store: the tree's root.
        retry: for the listing.
        is_known: whether the data are known to be images. If not, images that hold less than half of all bytes do not
            count: they belong to the description of other data.

    Raises:
        StreamError: there are data of other formats among the images, which are not known to be the data.
    """
    found = retry.call(f'Listing {store.url}', lambda: list(store.list('')))
    images = [info for info in found if is_image(info.key)]
    if not is_known and 2 * sum(info.size for info in images) < sum(info.size for info in found):
        return [], Ledger()
    if images and not is_known:
        one_format({ImageFolder.kind: len(images), **formats_in(found)}, store.url)
    ledger = ledger_of(found, images, images, with_rows={info.key for info in images}, columns=())
    return sorted(images, key=lambda info: (info.key.split('/')[0], *info.key.rpartition('/')[::2])), ledger


class ImageFolder:
    """The images of a tree as inputs; see `Inputs`.

    Args:
        store: the tree's root.
        images: those of `list_images`.
        columns: names to read of 'image', 'label', 'path'; None: the first two. 'path' is relative to the root.
        retry: for requests.
        ledger: that of `list_images`.

    Raises:
        ConfigError: images lie outside of class folders, or the first folders are splits.
    """

    kind = 'imagefolder'
    gives_batches = False

    def __init__(
        self,
        store: Store,
        images: Sequence[ObjectInfo],
        *,
        columns: Collection[str] | None,
        retry: Retry,
        ledger: Ledger,
    ) -> None:
        self._store, self._retry = store, retry
        self._root = store.url
        self._keys = [info.key for info in images]
        self._sizes = np.array([info.size for info in images], np.int64)
        self._etags = [info.etag for info in images]
        flat = [key for key in self._keys if '/' not in key]
        if flat:
            raise ConfigError(
                f'An ImageFolder has a folder for each class, but {store.url} holds the image {flat[0]!r} outside of '
                f'one. Move it into the folder of its class.'
            )
        classes = sorted({key.split('/')[0] for key in self._keys})
        splits = [name for name in classes if name.lower() in _SPLITS]
        in_classes = all(key.count('/') > 1 for key in self._keys if key.split('/')[0] in splits)
        if in_classes and splits and (len(splits) > 1 or splits == classes):
            raise ConfigError(
                f'The folders of an ImageFolder are its classes, but those of {store.url} are splits: {splits}. '
                f'Convert each one by itself, with split={splits[0]!r}.'
            )
        self._classes = classes
        label = {name: label for label, name in enumerate(classes)}
        self.labels = [label[key.partition('/')[0]] for key in self._keys]
        """The label of each image."""
        is_jpeg = all(key.lower().endswith(_JPEG) for key in self._keys)
        known = {'image': 'jpeg' if is_jpeg else 'png', 'label': 'int', 'path': 'str'}
        wanted = ['image', 'label'] if columns is None else list(columns)
        unknown = [name for name in wanted if name not in known]
        if unknown or not wanted:
            raise ConfigError(f'An ImageFolder has the columns {list(known)}, but got {wanted} to be read.')
        self.columns: Mapping[str, str] = {name: known[name] for name in wanted}
        dropped = tuple(name for name in ('image', 'label') if name not in wanted)
        self.ledger = replace(ledger, dropped=dropped)

    @property
    def identity(self) -> Mapping[str, object]:
        """The root."""
        return {'url': self._store.url}

    def places(self) -> Iterator[str]:
        """The images."""
        return (f'{self._store.url.rstrip("/")}/{key}' for key in self._keys)

    def digest(self, begin: int, end: int) -> str:
        """Of names, labels, sizes and versions."""
        listing = [
            *zip(
                self._keys[begin:end],
                self.labels[begin:end],
                self._sizes[begin:end].tolist(),
                self._etags[begin:end],
                strict=True,
            )
        ]
        return xxhash.xxh3_128_hexdigest(json.dumps(listing).encode('utf-8', 'surrogatepass'))

    @property
    def rows(self) -> int:
        """One for each image."""
        return len(self._keys)

    @property
    def sizes(self) -> Sizes:
        """Those of the files."""
        rest = _ROW_BYTES + np.array([len(key) if 'path' in self.columns else 0 for key in self._keys], np.int64)
        return Sizes(each=rest + (self._sizes if 'image' in self.columns else 0), is_exact=True)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The names of the classes, by label."""
        return classes_file(self._classes)

    @property
    def reads_ahead(self) -> int:
        """Many for stores, where most of a request is waiting."""
        return 1 if isinstance(self._store, LocalStore) else _REQUESTS

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, number: int) -> str:
        """The path or URL."""
        return f'{self._store.url}/{self._keys[number]}'

    def read(self, number: int) -> Iterable[Mapping[str, Any]]:
        """One sample.

        Raises:
            FormatError: the file does not begin as an image does.
        """
        key = self._keys[number]
        image = self._bytes(key) if 'image' in self.columns else b''
        if 'image' in self.columns and not image.startswith(_HEADS):
            raise FormatError(
                f'A file named as an image begins as one, but this one has {len(image)} bytes and begins with '
                f'{image[:8]!r}.'
            )
        values = {'image': image, 'label': self.labels[number], 'path': key}
        return ({name: values[name] for name in self.columns},)

    def _bytes(self, key: str) -> bytes:
        if isinstance(self._store, LocalStore):
            return read_file(f'{self._root}/{key}')  # a third of the time of `Store.get`
        return get_bytes(self._store, key, self._retry)
