"""The shards and first samples of a dataset of any format that headrace reads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.convert.stored_dataset import PATIENT, open_stored, with_stored_values
from headrace.errors import FormatError, ObjectNotFoundError
from headrace.format import MDSEncoder, ShardInfo, ShardTable, open_shard
from headrace.inspect.samples import first_samples
from headrace.sources.source_index import SourceIndex
from headrace.sources.source_store import SourceStore, has_glob
from headrace.storage import StoreOptions

__all__ = ['Content', 'open_content']


@dataclass(frozen=True)
class Content:
    """A dataset's shards."""

    format: str
    """Name of the format; several with commas."""
    is_estimate: bool
    """Whether raw sizes of shards are estimates."""
    shards: ShardTable
    """Of another format than MDS and its sister formats: its parts, as the shards that they become."""
    read: Callable[[int, int], Sequence[Mapping[str, Any]]]
    """(shard, count) -> the stored values of its first samples; see `first_samples`."""


def open_content(url: str | os.PathLike[str], options: StoreOptions | None) -> Content:
    """Read the index of a dataset, or make that of another format.

    Raises:
        ObjectNotFoundError: there is neither an index nor data of another format.
        FormatError: the index breaks a rule, or the data do.
        StreamError: the data are of several formats.
        StorageError: the store cannot be reached, or refuses.
    """
    place = os.fspath(url)
    if has_glob(place):
        return _other_format(place, options)
    try:
        dataset = open_stored(url, options)
    except (ObjectNotFoundError, FormatError):  # litdata's index has the same name
        store = _source_store(place, options)
        if store.find()[0] is None:
            raise
        return _other_format(place, options)
    shards = dataset.shards
    return Content(
        format=', '.join(dict.fromkeys(schema.format for schema in shards.schemas)),
        is_estimate=False,
        shards=shards,
        read=lambda shard, count: first_samples(dataset.store, shards[shard], count, PATIENT),
    )


def _source_store(url: str, options: StoreOptions | None) -> SourceStore:
    return SourceStore(
        url, options or StoreOptions(), split=None, format_name=None, columns=None, allow_unsafe_types=False
    )


def _other_format(url: str, options: StoreOptions | None) -> Content:
    store = _source_store(url, options)
    index = SourceIndex.from_bytes(_read(store, store.index_name))
    store.index = index
    shards = index.shards()
    return Content(
        format=index.source.format, is_estimate=True, shards=shards, read=partial(_first_rows, store, index, shards)
    )


def _read(store: SourceStore, key: str) -> bytes:
    def attempt() -> bytes:
        out = io.BytesIO()
        store.get(key, out)
        return out.getvalue()

    return PATIENT.call(f'Reading {store.url}', attempt)


def _first_rows(
    store: SourceStore, index: SourceIndex, shards: ShardTable, shard: int, count: int
) -> Sequence[Mapping[str, Any]]:
    """The first rows of a part, as the shard that it becomes has them."""
    packed = shards[shard].files[0].zip
    assert packed is not None
    batch = next(iter(index.source.batches(shard, memoryview(_read(store, packed.basename)))))
    encoder = MDSEncoder(index.source.columns, size_limit=None)
    encoder.add_batch({name: values[:count] for name, values in batch.items()})
    (encoded,) = encoder.finish()
    info: ShardInfo = encoded.info
    reader = open_shard(with_stored_values(info), [memoryview(encoded.files[0][1])], source=packed.basename)
    return [reader.sample(i) for i in range(info.samples)]
