"""Files as inputs: folders of images by class, and data of other formats.

An ImageFolder is what torchvision reads as one: ``ROOT/CLASS/.../NAME.jpg``. The classes are the sorted names of the
first folders, and a label is a place among them: as in torchvision. So is the order of the images. The bytes of the
files are kept, so nothing is lost. The column ``image`` is ``jpeg`` if all files are JPEGs, else ``png``; both read
images of all kinds. ``classes.json`` beside the shards has the names by label.

An input of another format is a part, such as a row group of Parquet or a run of samples of a tar.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.convert.inputs.records import Inputs, Sizes, classes_file, digest_of
from headrace.convert.stored_dataset import INDEX, StoredDataset, object_url, raw_files, without_erased
from headrace.dataset.streams.missing_index import explain_missing_index
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.format import open_shard, parse_index
from headrace.format.file_bytes import read_file
from headrace.sources.formats import formats_in, how_to_name, one_format, refuse_null_files
from headrace.sources.ledger import Ledger, ledger_of
from headrace.sources.source_index import SourceIndex, batches_of, names_of_classes
from headrace.sources.source_store import SourceStore, split_glob
from headrace.storage import ObjectInfo, Retry, Store, StoreOptions, local_path
from headrace.storage.stores.local import LocalStore

_JPEG: Final = ('.jpg', '.jpeg')
_EXTENSIONS: Final = (*_JPEG, '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp')  # those of torchvision
_HEADS: Final = (
    *(b'\xff\xd8\xff', b'\x89PNG', b'BM', b'II*\0', b'MM\0*', b'RIFF'),
    *(b'P%d' % number for number in range(1, 7)),
)
"""First bytes of images of these extensions."""
_SPLITS: Final = frozenset({'train', 'training', 'val', 'valid', 'validation', 'test', 'testing'})
_REQUESTS: Final = 16  # images that one process requests from a store at the same time
_ROW_BYTES: Final = 16  # bytes of a row besides its image and its path: label, sizes, and offset
_ROWS: Final = 1024  # rows of a shard that are read at one time
_AHEAD: Final = 2  # parts of a store that one process reads and decodes at the same time


def list_images(store: Store, retry: Retry, *, is_known: bool) -> tuple[list[ObjectInfo], Ledger]:
    """The images of a tree, in torchvision's order, and what was left out.

    Unless they are known to be the data, images under half of all bytes do not count: they describe other data.
    """
    infos = retry.call(f'Listing {store.url}', lambda: list(store.list('')))
    images = [info for info in infos if info.key.lower().endswith(_EXTENSIONS)]
    if not is_known and 2 * sum(info.size for info in images) < sum(info.size for info in infos):
        return [], Ledger()
    if images and not is_known:
        one_format({ImageFolder.kind: len(images), **formats_in(infos)}, store.url)
    ledger = ledger_of(infos, images, images, with_rows={info.key for info in images}, columns=())
    return sorted(images, key=lambda info: (info.key.split('/')[0], *info.key.rpartition('/')[::2])), ledger


class ImageFolder(Inputs):
    """The images of a tree as inputs.

    `columns`: of 'image', 'label', 'path'; by default the first two. 'path' is relative to the root. ConfigError:
    images lie outside of class folders, or the first folders are splits.
    """

    kind = 'imagefolder'
    are_files = True

    def __init__(
        self,
        store: Store,
        images: Sequence[ObjectInfo],
        *,
        columns: Collection[str] | None,
        retry: Retry,
        ledger: Ledger,
    ) -> None:
        self._store, self._place = store, StorePlace(store, retry)
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
        label = {name: label for label, name in enumerate(classes)}
        self.labels = [label[key.partition('/')[0]] for key in self._keys]  # the label of each image
        is_jpeg = all(key.lower().endswith(_JPEG) for key in self._keys)
        encodings = {'image': 'jpeg' if is_jpeg else 'png', 'label': 'int', 'path': 'str'}
        wanted = ['image', 'label'] if columns is None else list(columns)
        unknown = [name for name in wanted if name not in encodings]
        if unknown or not wanted:
            raise ConfigError(f'An ImageFolder has the columns {list(encodings)}, but got {wanted} to be read.')
        self._wanted, self.columns = wanted, {name: encodings[name] for name in wanted}
        self.ledger = replace(ledger, dropped=tuple(name for name in ('image', 'label') if name not in wanted))
        self.identity = {'url': store.url}
        self.rows = len(self._keys)
        rest = _ROW_BYTES + np.array([len(key) if 'path' in wanted else 0 for key in self._keys], np.int64)
        self.sizes = Sizes(each=rest + (self._sizes if 'image' in wanted else 0), is_exact=True)
        self.files = classes_file(classes)
        # Most of a request to a store is waiting.
        self.reads_ahead = 1 if isinstance(store, LocalStore) else _REQUESTS

    def places(self) -> Iterator[str]:
        return (f'{self._store.url.rstrip("/")}/{key}' for key in self._keys)

    def digest(self, begin: int, end: int) -> str:
        fields = (self._keys, self.labels, self._sizes.tolist(), self._etags)
        return digest_of(list(zip(*(values[begin:end] for values in fields), strict=True)))

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, number: int) -> str:
        return f'{self._store.url}/{self._keys[number]}'

    def file(self, number: int) -> str:
        return self.name(number)

    def read(self, number: int) -> Iterable[Mapping[str, Any]]:
        key = self._keys[number]
        image = self._bytes(key) if 'image' in self._wanted else b''
        if 'image' in self._wanted and not image.startswith(_HEADS):
            raise FormatError(
                f'A file named as an image begins as one, but this one has {len(image)} bytes and begins with '
                f'{image[:8]!r}.'
            )
        values = {'image': image, 'label': self.labels[number], 'path': key}
        return ({name: values[name] for name in self._wanted},)

    def _bytes(self, key: str) -> bytes:
        if isinstance(self._store, LocalStore):
            return read_file(f'{self._root}/{key}')  # a third of the time of `Store.get`
        return self._place.read(key)


def open_parts(
    url: str,
    options: StoreOptions,
    *,
    format_name: str | None,
    format_options: Mapping[str, Any] | None,
    split: str | None,
    columns: list[str] | None,
    limit: int | None,
    allow_unsafe_types: bool,
    retry: Retry,
) -> PartInputs:
    """The parts of a dataset of another format, which is indexed now; see `convert` for the arguments."""
    store = SourceStore(
        url,
        options,
        split=split,
        format_name=format_name,
        format_options=format_options,
        columns=columns,
        allow_unsafe_types=allow_unsafe_types,
    )
    source_format, listed = retry.call(f'Listing {url}', store.find)
    if source_format is None:
        path = local_path(split_glob(url)[0])
        hint = how_to_name(info.key for info in listed)
        place = hint if path is None else f' {explain_missing_index(Path(path))}'
        raise ObjectNotFoundError(
            f'No data of a known format is at {url}: neither images in a folder for each class, nor files of '
            f'`headrace.sources`. Check the path, or name the `format`. MDS shards are for `headrace cp` and `reshard`.'
            f'{place}'
        )
    index = store.open_index(retry)
    refuse_null_files(index.source.columns, getattr(index.source, 'with_nulls', ()), source=store.shown)
    return PartInputs(store, index, limit=limit, is_local=local_path(url) is not None, retry=retry)


class PartInputs(Inputs):
    """The parts of a source as inputs, with `limit` rows at most."""

    are_files = True
    gives_batches = True

    def __init__(
        self, store: SourceStore, index: SourceIndex, *, limit: int | None, is_local: bool, retry: Retry
    ) -> None:
        self._store, self._index, self.ledger = store, index, store.ledger
        self._place = StorePlace(store, retry)
        source = index.source
        ends = list(itertools.accumulate(part.rows for part in source.parts))
        self._first_row = [0, *ends][:-1]
        self.rows = self._end = min(ends[-1], limit or ends[-1])
        self._count = sum(first < self._end for first in self._first_row)
        self.kind, self.columns, self.meanings = source.format, dict(source.columns), dict(source.meanings)
        self.files = classes_file(names_of_classes(source))
        self.reads_ahead = 1 if is_local else _AHEAD
        self.identity = {'url': store.url, **({'format_options': store.format_options} if store.format_options else {})}
        sizes = (part.size for part in itertools.islice(source.parts, self._count))
        self.sizes = Sizes(each=np.fromiter(sizes, np.int64, self._count))
        self._keys = [shard.files[0].zip.basename for shard in index.shards() if shard.files[0].zip is not None]

    def __len__(self) -> int:
        return self._count

    def name(self, number: int) -> str:
        part, first = self._index.source.parts[number], self._first_row[number]
        return f'{part.key} of {self._store.shown}, rows {first} to {first + part.rows - 1}'

    def file(self, number: int) -> str:
        return f'{self._store.root_url}/{self._index.source.parts[number].key}'

    def places(self) -> Iterator[str]:
        return (f'{self._store.root_url}/{key}' for key in self._index.objects)

    def digest(self, begin: int, end: int) -> str:
        listing: list[Any] = []
        for number in range(begin, end):
            part = self._index.source.parts[number]
            info = self._index.objects[part.key]
            rows = min(part.rows, self._end - self._first_row[number])
            versions = [self._index.objects[key] for key in (part.key, *(key for key, *_ in part.beside))]
            etags = [info.version or info.etag for info in versions]
            listing.append((part.key, part.ranges, rows, info.size, etags, part.beside))
        return digest_of(listing)

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        data = self._place.read(self._keys[number])
        left = self._end - self._first_row[number]
        for batch in batches_of(self._index.source, number, memoryview(data)):
            count = len(next(iter(batch.values())))
            if count >= left:
                yield {name: values[:left] for name, values in batch.items()}
                return
            yield batch
            left -= count


class ShardInputs(Inputs):
    """The shards of a dataset as inputs, of which one column is read; a ConfigError if a shard lacks it."""

    kind = 'mds'
    are_files = True
    gives_batches = True

    def __init__(
        self, dataset: StoredDataset, column: str, *, limit: int | None, allow_unsafe_types: bool, retry: Retry
    ) -> None:
        self._store, self._column, self._retry = dataset.store, column, retry
        index = object_url(dataset.store, INDEX)
        shards = parse_index(dataset.index, source=index, allow_unsafe_types=allow_unsafe_types, allow_empty=True)
        for schema in shards.schemas:
            if column not in schema.names:
                raise ConfigError(
                    f'`column` asks for {column!r}, but {index} has the columns {", ".join(schema.names)}.'
                )
        ends = shards.samples.cumsum()
        self.rows = int(min(ends[-1], limit or ends[-1])) if len(shards) else 0
        self._shards = [shards[number] for number in range(int(ends.searchsorted(self.rows)) + 1 if self.rows else 0)]
        self._ends = ends.tolist()
        self.columns = {column: 'str'}
        self.ledger = Ledger(files=len(self._shards), dropped=tuple(n for n in shards.schemas[0].names if n != column))
        self.identity = {'url': dataset.store.url}
        self.sizes = Sizes(each=shards.raw_bytes()[: len(self._shards)])
        self.reads_ahead = 1 if isinstance(dataset.store, LocalStore) else _AHEAD
        listed = {
            info.key: info for info in retry.call(f'Listing {dataset.store.url}', lambda: list(dataset.store.list('')))
        }
        self._files = [[listed[name] for name in shard.file_names if name in listed] for shard in self._shards]

    def __len__(self) -> int:
        return len(self._shards)

    def name(self, number: int) -> str:
        return object_url(self._store, self._shards[number].name)

    def places(self) -> Iterator[str]:
        return (object_url(self._store, info.key) for infos in self._files for info in infos)

    def digest(self, begin: int, end: int) -> str:
        return digest_of(
            [
                (
                    self._count(number),
                    [(info.key, info.size, info.version or info.etag) for info in self._files[number]],
                )
                for number in range(begin, end)
            ]
        )

    def _count(self, number: int) -> int:
        first = self._ends[number] - self._shards[number].samples
        return min(self._ends[number], self.rows or 0) - first

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        info, names = self._shards[number], [self._column]
        reader = open_shard(info, raw_files(self._store, info, self._retry), source=self.name(number), columns=names)
        for begin in range(0, count := self._count(number), _ROWS):
            rows = without_erased(info, np.arange(begin, min(begin + _ROWS, count)))
            batch = info.schema.allocate(len(rows))
            reader.gather(rows, np.arange(len(rows)), batch)
            yield {self._column: batch.columns[self._column]}
