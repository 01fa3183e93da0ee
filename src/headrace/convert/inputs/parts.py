"""Data of other formats: an input is a part, such as a row group of Parquet or a run of samples of a tar."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from headrace.convert.inputs.samples import classes_file
from headrace.convert.protocol import Sizes
from headrace.convert.record import get_bytes
from headrace.dataset.streams.missing_index import explain_missing_index
from headrace.errors import ObjectNotFoundError
from headrace.sources.source_index import SourceIndex, names_of_classes
from headrace.sources.source_store import SourceStore, split_glob
from headrace.storage import Retry, StoreOptions, local_path

__all__ = ['PartInputs', 'open_parts']

_AHEAD: Final = 2
"""Parts of a store that one process reads and decodes at the same time."""


def open_parts(
    url: str,
    options: StoreOptions,
    *,
    format_name: str | None,
    split: str | None,
    columns: list[str] | None,
    limit: int | None,
    allow_unsafe_types: bool,
    retry: Retry,
) -> PartInputs:
    """The parts of a dataset of another format, which is indexed now.

    Args:
        url: folder, URL, or glob of files.
        options: how to reach the store.
        format_name: name of the format; None: found by the names of the files.
        split: a sub-folder, or files with this name; None: all files.
        columns: names of the columns to read; None: all.
        limit: number of rows to convert, from the first; None: all.
        allow_unsafe_types: whether columns may run code when they are read.
        retry: for requests.

    Raises:
        ObjectNotFoundError: there are no data of a known format.
        StreamError, FormatError: see `headrace.sources`.
    """
    store = SourceStore(
        url,
        options,
        split=split,
        format_name=format_name,
        columns=columns,
        allow_unsafe_types=allow_unsafe_types,
    )
    found, _ = retry.call(f'Listing {url}', store.find)
    if found is None:
        path = local_path(split_glob(url)[0])
        place = '' if path is None else f' {explain_missing_index(Path(path))}'
        raise ObjectNotFoundError(
            f'No data of a known format is at {url}: neither images in a folder for each class, nor files of '
            f'`headrace.sources`. Check the path, or name the `format`. MDS shards are for `headrace cp` and `reshard`.'
            f'{place}'
        )
    index = io.BytesIO()
    store.get(store.index_name, index)
    store.index = SourceIndex.from_bytes(index.getvalue())
    return PartInputs(store, store.index, limit=limit, is_local=local_path(url) is not None, retry=retry)


class PartInputs:
    """The parts of a source as inputs; see `Inputs`.

    Args:
        store: reads parts.
        index: lists them.
        limit: number of rows to convert, from the first; None: all.
        is_local: whether the data are on this machine.
        retry: for requests.
    """

    gives_batches = True

    def __init__(
        self, store: SourceStore, index: SourceIndex, *, limit: int | None, is_local: bool, retry: Retry
    ) -> None:
        self._store, self._index, self._retry, self.ledger = store, index, retry, store.ledger
        source = index.source
        ends = list(itertools.accumulate(part.rows for part in source.parts))
        self._first_row = [0, *ends][:-1]
        self.rows = min(ends[-1], limit or ends[-1])
        self._count = sum(first < self.rows for first in self._first_row)
        self.kind, self.columns = source.format, dict(source.columns)
        self.files = classes_file(names_of_classes(source))
        self.reads_ahead = 1 if is_local else _AHEAD
        self.identity: Mapping[str, object] = {'url': store.url}
        sizes = (part.size for part in itertools.islice(source.parts, self._count))
        self.sizes = Sizes(each=np.fromiter(sizes, np.int64, self._count))
        self._keys = [shard.files[0].zip.basename for shard in index.shards() if shard.files[0].zip is not None]

    def __len__(self) -> int:
        return self._count

    def name(self, number: int) -> str:
        """The object, and the rows in the whole source."""
        part, first = self._index.source.parts[number], self._first_row[number]
        return f'{part.key} of {self._store.shown}, rows {first} to {first + part.rows - 1}'

    def places(self) -> Iterator[str]:
        """The objects."""
        return (f'{self._store.root_url}/{key}' for key in self._index.objects)

    def digest(self, begin: int, end: int) -> str:
        """Of the parts, and of sizes and versions of their objects."""
        listing: list[Any] = []
        for number in range(begin, end):
            part = self._index.source.parts[number]
            info = self._index.objects[part.key]
            rows = min(part.rows, self.rows - self._first_row[number])
            listing.append((part.key, part.ranges, rows, info.size, info.etag))
        return xxhash.xxh3_128_hexdigest(json.dumps(listing).encode('utf-8', 'surrogatepass'))

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The batches of a part."""
        data = get_bytes(self._store, self._keys[number], self._retry)
        left = self.rows - self._first_row[number]
        for batch in self._index.source.batches(number, memoryview(data)):
            count = len(next(iter(batch.values())))
            if count >= left:
                yield {name: values[:left] for name, values in batch.items()}
                return
            yield batch
            left -= count
