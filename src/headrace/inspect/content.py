"""The shards and first samples of a dataset of any format that headrace reads, with few bytes read."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from headrace.convert.stored_dataset import PATIENT, object_url, open_stored, raw_files, with_stored_values
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ChecksumError, ConfigError, FormatError, ObjectNotFoundError, ShardError
from headrace.format import FileInfo, MDSEncoder, ShardFile, ShardInfo, ShardTable, open_shard
from headrace.sources.formats import check_format
from headrace.sources.source_index import SourceIndex, batches_of
from headrace.sources.source_store import SourceStore, has_glob
from headrace.storage import Retry, Store, StoreOptions

ENOUGH: Final = 8 << 20  # bytes of samples after which no further one is read


def first_samples(store: Store, info: ShardInfo, count: int, retry: Retry) -> list[Mapping[str, Any]]:
    """The first samples of a shard, undecoded, at least one. Of uncompressed shards only their ranges are read."""
    count = min(count, info.samples)
    if any(file.zip is not None for file in info.files):
        shard, buffers = info, raw_files(store, info, retry)
    else:
        shard, buffers = _beginning(store, info, count, retry)
    reader = open_shard(with_stored_values(shard), buffers, source=info.name)
    return list(_until_enough(reader.sample(i) for i in range(min(count, shard.samples))))


def _until_enough(samples: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    left = ENOUGH
    for sample in samples:
        yield sample
        left -= sum(len(value) for value in sample.values() if isinstance(value, bytes | str))
        if left < 0:
            return


def _beginning(store: Store, info: ShardInfo, count: int, retry: Retry) -> tuple[ShardInfo, list[memoryview]]:
    """A shard of the first samples of another one."""
    data, table = info.files[0].raw, info.files[-1].raw
    head = _read_range(store, table, 0, 8 + 4 * count, retry)
    offsets = np.frombuffer(head, '<u4', count + 1, 4).astype(np.int64)
    stored = int.from_bytes(head[:4], 'little')
    if stored != info.samples or (np.diff(offsets) < 0).any() or offsets[-1] > data.bytes:
        raise ShardError(
            f'Shard {table.basename} is damaged: the index counts {info.samples} samples in {data.bytes} bytes, but '
            f'its table of offsets does not fit. Run `headrace verify`.'
        )
    count = max(1, int((offsets[1:] - offsets[0] <= ENOUGH).sum()))
    begin, end = int(offsets[0]), int(offsets[count])
    number = count.to_bytes(4, 'little')
    if info.format == 'mds':
        values = _read_range(store, data, begin, end - begin, retry)
        moved = (offsets[: count + 1] - begin + 8 + 4 * count).astype('<u4')
        buffers = [number + moved.tobytes() + values]
    else:  # the first line may be a header
        buffers = [_read_range(store, data, 0, end, retry), number + offsets[: count + 1].astype('<u4').tobytes()]
    files = tuple(
        ShardFile(FileInfo(file.raw.basename, len(buffer), {}), None)
        for file, buffer in zip(info.files, buffers, strict=True)
    )
    return dataclasses.replace(info, samples=count, files=files), [memoryview(buffer) for buffer in buffers]


def _read_range(store: Store, info: FileInfo, offset: int, size: int, retry: Retry) -> bytes:
    def attempt() -> bytes:
        out = io.BytesIO()
        store.get(info.basename, out, offset=offset, size=size)
        return out.getvalue()

    try:
        return retry.call(f'Reading {object_url(store, info.basename)}', attempt) if size else b''
    except ConfigError:  # a range outside of the object is refused
        stored = store.head(info.basename).size
        if stored >= offset + size:
            raise
        raise ChecksumError(f'{info.basename} has {stored} bytes, the index gives {info.bytes}.') from None


@dataclass(frozen=True)
class Content:
    format: str  # Name of the format; several with commas.
    is_estimate: bool  # Whether raw sizes of shards are estimates.
    shards: ShardTable  # Of another format than MDS and its sister formats: its parts, as the shards that they become.
    read: Callable[[int, int], Sequence[Mapping[str, Any]]]
    """(shard, count) -> the stored values of its first samples; see `first_samples`."""


def open_content(
    url: str | os.PathLike[str],
    options: StoreOptions | None,
    *,
    split: str | None = None,
    format: str | None = None,  # noqa: A002 - as in a stream
    format_options: Mapping[str, Any] | None = None,
) -> Content:
    """Read the index of a dataset, or make that of another format. The arguments are those of a stream."""
    place = os.fspath(url)

    def source() -> SourceStore:
        return SourceStore(
            place,
            options or StoreOptions(),
            split=split,
            format_name=format,
            format_options=format_options,
            columns=None,
            allow_unsafe_types=False,
        )

    if check_format(format) not in (None, 'mds') or (format is None and has_glob(place)):
        return _other_format(source())
    try:
        dataset = open_stored(f'{place.rstrip("/")}/{split}' if split else url, options)
    except (ObjectNotFoundError, FormatError):  # litdata's index has the same name
        if format is not None or source().find()[0] is None:
            raise
        return _other_format(source())
    shards = dataset.shards
    return Content(
        format=', '.join(dict.fromkeys(schema.format for schema in shards.schemas)),
        is_estimate=False,
        shards=shards,
        read=lambda shard, count: first_samples(dataset.store, shards[shard], count, PATIENT),
    )


def _other_format(store: SourceStore) -> Content:
    index = store.open_index(PATIENT)
    shards = index.shards()
    return Content(
        format=index.source.format, is_estimate=True, shards=shards, read=partial(_first_rows, store, index, shards)
    )


def _first_rows(
    store: SourceStore, index: SourceIndex, shards: ShardTable, shard: int, count: int
) -> Sequence[Mapping[str, Any]]:
    """The first rows of a part, as the shard that it becomes has them."""
    packed = shards[shard].files[0].zip
    assert packed is not None
    data = memoryview(StorePlace(store, PATIENT).read(packed.basename))
    batch = next(batches_of(index.source, shard, data))
    encoder = MDSEncoder(index.source.columns, size_limit=None)
    encoder.add_batch({name: values[:count] for name, values in batch.items()})
    (encoded,) = encoder.finish()
    info: ShardInfo = encoded.info
    reader = open_shard(with_stored_values(info), [memoryview(encoded.files[0][1])], source=packed.basename)
    return [reader.sample(i) for i in range(info.samples)]
