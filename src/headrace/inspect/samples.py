"""The first samples of a shard as they are stored, with few bytes read."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from headrace.convert.stored_dataset import object_url, raw_files, with_stored_values
from headrace.errors import ChecksumError, ConfigError, ShardError
from headrace.format import FileInfo, ShardFile, ShardInfo, open_shard
from headrace.storage import Retry, Store

__all__ = ['ENOUGH', 'first_samples']

ENOUGH: Final = 8 << 20
"""Bytes of samples after which no further one is read."""


def first_samples(store: Store, info: ShardInfo, count: int, retry: Retry) -> list[Mapping[str, Any]]:
    """The first samples of a shard, without decoding; at least one, and fewer than `count` if they are large.

    Of an uncompressed shard only the ranges of these samples are read, of a compressed one all.

    Args:
        store: the dataset's root.
        info: a shard with a sample.
        count: how many samples.
        retry: how often to try each request.

    Returns:
        The stored values of each sample; see `with_stored_values`.

    Raises:
        FormatError: the shard is damaged.
        StorageError: the store failed.
    """
    count = min(count, info.samples)
    if any(file.zip is not None for file in info.files):
        shard, buffers = info, raw_files(store, info, retry)
    else:
        shard, buffers = _beginning(store, info, count, retry)
    reader = open_shard(with_stored_values(shard), buffers, source=info.files[0].raw.basename)
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
    head = _read(store, table, 0, 8 + 4 * count, retry)
    offsets = np.frombuffer(head, '<u4', count + 1, 4).astype(np.int64)
    found = int.from_bytes(head[:4], 'little')
    if found != info.samples or (np.diff(offsets) < 0).any() or offsets[-1] > data.bytes:
        raise ShardError(
            f'Shard {table.basename} is damaged: the index counts {info.samples} samples in {data.bytes} bytes, but '
            f'its table of offsets does not fit. Run `headrace verify`.'
        )
    count = max(1, int((offsets[1:] - offsets[0] <= ENOUGH).sum()))
    begin, end = int(offsets[0]), int(offsets[count])
    number = count.to_bytes(4, 'little')
    if info.format == 'mds':
        values = _read(store, data, begin, end - begin, retry)
        moved = (offsets[: count + 1] - begin + 8 + 4 * count).astype('<u4')
        buffers = [number + moved.tobytes() + values]
    else:  # the first line may be a header
        buffers = [_read(store, data, 0, end, retry), number + offsets[: count + 1].astype('<u4').tobytes()]
    files = tuple(
        ShardFile(FileInfo(file.raw.basename, len(buffer), {}), None)
        for file, buffer in zip(info.files, buffers, strict=True)
    )
    return dataclasses.replace(info, samples=count, files=files), [memoryview(buffer) for buffer in buffers]


def _read(store: Store, info: FileInfo, offset: int, size: int, retry: Retry) -> bytes:
    """A range of a file, all of which lies in it by the index."""

    def attempt() -> bytes:
        out = io.BytesIO()
        store.get(info.basename, out, offset=offset, size=size)
        return out.getvalue()

    try:
        return retry.call(f'Reading {object_url(store, info.basename)}', attempt) if size else b''
    except ConfigError:  # a range outside of the object is refused
        found = store.head(info.basename).size
        if found >= offset + size:
            raise
        raise ChecksumError(f'{info.basename} has {found} bytes, the index gives {info.bytes}.') from None
