"""What tests of several formats share: a store in memory, and reading a whole source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from headrace.format.encodings.registry import mds_decode, mds_encode
from headrace.sources import Source, SourceFormat
from headrace.storage import ObjectInfo


@dataclass
class MemoryStore:
    """Objects in memory, and the ranges of them that were read."""

    objects: dict[str, bytes]
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    url: str = 'memory://'

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        data = self.objects[key][offset:] if size is None else self.objects[key][offset : offset + size]
        assert size is None or len(data) == size, 'a range beyond the end of an object'
        self.reads.append((key, offset, len(data)))
        out.write(data)
        return ''

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.objects[key]), '')

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter([self.head(key) for key in sorted(self.objects) if key.startswith(prefix)])

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        self.objects[key] = source.read()

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


def index(
    kind: SourceFormat,
    objects: Mapping[str, bytes],
    *,
    columns: Collection[str] | None = None,
    allow_unsafe_types: bool = False,
    **options: Any,
) -> Source:
    """The source of objects, saved and loaded. `options`: those of the format."""
    store = MemoryStore(dict(objects))
    found = kind.find(list(store.list('')))
    assert found, 'no object of this format'
    source = kind.index(store, found, columns=columns, allow_unsafe_types=allow_unsafe_types, **options)
    loaded = kind.load(source.to_bytes())
    assert dict(loaded.columns) == dict(source.columns)
    assert list(loaded.parts) == list(source.parts)
    assert loaded.format == kind.NAME
    return loaded


def part_bytes(source: Source, number: int, objects: Mapping[str, bytes]) -> memoryview:
    """What the cache would fetch for a part."""
    part = source.parts[number]
    data = objects[part.key]
    if part.ranges:
        data = b''.join(data[offset : offset + size] for offset, size in part.ranges)
    beside = [objects[key][offset : offset + size] for key, offset, size in part.beside]
    return memoryview(b''.join([*beside, data]))


def rows(source: Source, objects: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """All samples, each value written in its MDS encoding and read back."""
    found: list[dict[str, Any]] = []
    for number, part in enumerate(source.parts):
        before = len(found)
        for batch in source.batches(number, part_bytes(source, number, objects)):
            assert set(batch) == set(source.columns)
            lengths = {len(values) for values in batch.values()}
            assert len(lengths) == 1
            found += [
                {
                    name: mds_decode(encoding, mds_encode(encoding, _plain(batch[name][row])))
                    for name, encoding in source.columns.items()
                }
                for row in range(lengths.pop())
            ]
        assert len(found) - before == part.rows
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
