"""Data of other formats: an input is a part, such as a row group of Parquet or a run of samples of a tar."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import xxhash

from headrace.convert.inputs.protocol import Sizes
from headrace.convert.record import get_bytes
from headrace.sources import Source, SourceFormat
from headrace.sources.ranges import ByteRange, read_ranges
from headrace.storage import ObjectInfo, Retry, Store
from headrace.storage.stores.local import LocalStore

__all__ = ['PartInputs']

_AHEAD: Final = 2
"""Parts of a store that one process reads and decodes at the same time."""


class PartInputs:
    """The parts of a source as inputs; see `Inputs`.

    Args:
        store: where its objects are.
        format: indexed the source.
        source: the result.
        objects: those that were indexed.
        limit: number of rows to convert, from the first; None: all.
        retry: for requests.
    """

    gives_batches = True
    files: Mapping[str, bytes] = {}

    def __init__(
        self,
        store: Store,
        format: SourceFormat,  # noqa: A002 - as in `convert`
        source: Source,
        objects: Sequence[ObjectInfo],
        *,
        limit: int | None,
        retry: Retry,
    ) -> None:
        self._store, self._source, self._retry = store, source, retry
        self._etags = {info.key: info.etag for info in objects}
        ends = list(itertools.accumulate(part.rows for part in source.parts))
        total = ends[-1] if ends else 0
        self.rows = min(total, limit or total)
        self._count = sum(end - part.rows < self.rows for end, part in zip(ends, source.parts, strict=True))
        self._first_row = [end - part.rows for end, part in zip(ends, source.parts, strict=True)]
        self.kind, self.columns = format.NAME, dict(source.columns)
        listing = json.dumps([(info.key, info.size, info.etag) for info in objects])
        self.identity: Mapping[str, object] = {
            'url': store.url,
            'objects': len(objects),
            'digest': xxhash.xxh3_128_hexdigest(listing.encode('utf-8', 'surrogatepass')),
            'rows': self.rows,
        }

    @property
    def sizes(self) -> Sizes:
        """The source's estimates."""
        return Sizes(each=np.array([part.size for part in itertools.islice(self._source.parts, self._count)], np.int64))

    @property
    def reads_ahead(self) -> int:
        """A few for stores."""
        return 1 if isinstance(self._store, LocalStore) else _AHEAD

    def __len__(self) -> int:
        return self._count

    def name(self, number: int) -> str:
        """The object, and the rows in the whole source."""
        part, first = self._source.parts[number], self._first_row[number]
        return f'{self._store.url}/{part.key}, rows {first} to {first + part.rows - 1}'

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The batches of a part."""
        part = self._source.parts[number]
        left = self.rows - self._first_row[number]
        for batch in self._source.batches(number, memoryview(self._bytes(part.key, part.ranges))):
            count = len(next(iter(batch.values())))
            if count > left:
                yield {name: values[:left] for name, values in batch.items()}
                return
            yield batch
            left -= count

    def _bytes(self, key: str, ranges: Sequence[tuple[int, int]]) -> bytes:
        if not ranges:
            return get_bytes(self._store, key, self._retry)
        wanted: Iterable[ByteRange] = (ByteRange(key, *one, self._etags.get(key, '')) for one in ranges)
        found = list(read_ranges(self._store, wanted, retry=self._retry))
        return found[0] if len(found) == 1 else b''.join(found)
