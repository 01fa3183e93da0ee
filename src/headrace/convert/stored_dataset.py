"""A dataset of shards in a store: its index, and its shards one at a time, without a cache folder.

Fetched and unpacked files have no names, so a killed process leaves none. Files of a local folder are read in place.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np

from headrace.dataset.streams.missing_index import explain_missing_index
from headrace.errors import ChecksumError, FormatError, ObjectNotFoundError
from headrace.format import (
    FileInfo,
    Schema,
    ShardFile,
    ShardInfo,
    ShardTable,
    hash_file,
    is_hash,
    parse_index,
    unpack_stream,
)
from headrace.format.encodings.registry import fixed_array_type
from headrace.format.shards import IntArray
from headrace.storage import Retry, Store, StoreOptions, download, local_path, open_store
from headrace.storage.stores.local import LocalStore

INDEX: Final = 'index.json'
PATIENT: Final = Retry(attempts=4)  # how often a request is tried


@dataclass(frozen=True)
class StoredDataset:
    store: Store
    index: bytes  # the content of ``index.json``
    shards: ShardTable  # columns that run code when they are read are accepted here: nothing reads them


def open_stored(
    url: str | os.PathLike[str], options: StoreOptions | None = None, *, retry: Retry = PATIENT
) -> StoredDataset:
    """The dataset of an index; ObjectNotFoundError, FormatError or StorageError if that cannot be read."""
    store = open_store(url, options)
    try:
        with open_object(store, INDEX, None, retry) as file:
            data = file.read()
    except ObjectNotFoundError as error:
        path = local_path(url)
        raise ObjectNotFoundError(
            str(error) if path is None else f'{error} {explain_missing_index(Path(path))}'
        ) from None
    source = object_url(store, INDEX)
    return StoredDataset(store, data, parse_index(data, source=source, allow_unsafe_types=True, allow_empty=True))


def folder_of(store: Store) -> Path | None:
    """The folder whose files are read in place; None for other stores, and for stores made of folders."""
    return store.root if type(store) is LocalStore else None


def object_url(store: Store, key: str) -> str:
    return f'{store.url.rstrip("/")}/{key}'


def open_object(store: Store, key: str, size: int | None, retry: Retry = PATIENT) -> BinaryIO:
    """An object at its beginning: the local file, or a copy without a name; ChecksumError: not of `size` bytes."""
    folder = folder_of(store)
    if folder is not None:
        stored = store.head(key).size
        if size is not None and stored != size:
            raise ChecksumError(f'It has {stored} bytes, the index gives {size}.')
        return open(folder / key, 'rb')
    file = cast('BinaryIO', tempfile.TemporaryFile(prefix='headrace-'))  # noqa: SIM115 - the caller closes it
    try:
        download(store, key, file, retry, size=size)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def check_hashes(file: BinaryIO, info: FileInfo) -> None:
    hashes = {name: digest for name, digest in info.hashes.items() if is_hash(name)}
    if not hashes:
        return
    file.seek(0)
    computed = hash_file(file, hashes)
    file.seek(0)
    for name, digest in hashes.items():
        if computed[name] != digest.lower():
            raise ChecksumError(f'The index gives the {name} {digest[:140]}, but it is {computed[name]}.')


def raw_files(
    store: Store,
    info: ShardInfo,
    retry: Retry = PATIENT,
    *,
    is_compressed: bool | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> list[memoryview]:
    """A shard's raw files, mapped; all sizes and checksums are checked, each after a call of `step`.

    `is_compressed`: whether to take compressed files; by default as the index says, except raw files that a folder has.
    """
    buffers: list[memoryview] = []
    for file in info.files:
        try:
            raw = _raw_file(store, info, file, retry, is_compressed=is_compressed, step=step)
        except FormatError as error:
            raise type(error)(f'{file.raw.basename}: {error}') from error
        buffers.append(map_file(raw, file.raw.bytes))
    return buffers


def _raw_file(
    store: Store,
    info: ShardInfo,
    file: ShardFile,
    retry: Retry,
    *,
    is_compressed: bool | None,
    step: Callable[[str], None],
) -> BinaryIO:
    compressed, folder = file.zip, folder_of(store)
    if is_compressed is None and folder is not None:
        is_compressed = not (folder / file.raw.basename).exists()
    if compressed is None or is_compressed is False:
        step('size')
        raw = open_object(store, file.raw.basename, file.raw.bytes, retry)
    else:
        assert info.compression is not None
        step('size')
        with open_object(store, compressed.basename, compressed.bytes, retry) as source:
            step('checksum')
            check_hashes(source, compressed)
            step('unpack')
            raw = cast('BinaryIO', tempfile.TemporaryFile(prefix='headrace-'))  # noqa: SIM115 - the caller closes it
            unpack_stream(info.compression, source, raw, file.raw.bytes, source=compressed.basename)
            raw.flush()
    step('checksum')
    check_hashes(raw, file.raw)
    return raw


def map_file(file: BinaryIO, size: int) -> memoryview:
    """The content of an open file, which is closed; the map ends with its last view."""
    with file:
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b'')


def without_erased(info: ShardInfo, rows: IntArray) -> IntArray:
    """Those of the rows of a shard, int64[rows] in ascending order, that are not erased."""
    return np.setdiff1d(rows, np.array(info.erasure.rows, np.int64), assume_unique=True)


def _is_number(encoding: str) -> bool:
    return fixed_array_type(encoding) is not None


def with_stored_values(info: ShardInfo, is_decoded: Callable[[str], bool] = _is_number) -> ShardInfo:
    """An MDS shard whose values are read as they are stored, so no image is encoded twice, and no pickle runs.

    Columns of which `is_decoded` is True keep their encodings. Others are ``bytes``, which any writer stores unchanged.
    """
    schema = info.schema
    if schema.format != 'mds':
        return info
    encodings = tuple(
        encoding if is_decoded(encoding) else 'bytes' if size is None else f'ndarray:uint8:{size}'
        for encoding, size in zip(schema.encodings, schema.sizes, strict=True)
    )
    return dataclasses.replace(info, schema=Schema('mds', schema.names, encodings, schema.sizes))
