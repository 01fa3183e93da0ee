"""Concurrent opening of a dataset's streams."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.dataset.streams.changed_data import first_ask
from headrace.dataset.streams.stream import Stream
from headrace.storage import CacheLimit
from headrace.storage.cache.index_check import IndexCheck

__all__ = ['open_streams']


def open_streams(
    streams: Sequence[Stream], *, cache_limit: int | None, allow_unsafe_types: bool, **defaults: Any
) -> None:
    """Open the streams of one dataset at the same time.

    Args:
        streams: the streams; each missing name or value is filled in.
        cache_limit: bytes that their folders may take together; None: no limit.
        allow_unsafe_types: whether to open data with pickled columns.
        defaults: values by the names of a stream's arguments.

    Raises:
        Exception: as `Stream.open`.
    """
    for number, stream in enumerate(streams):
        # A stream's name is part of the order's key, so it must not depend on the data's location.
        stream.name = stream.name or f'stream_{number}'
        stream.fill_in(defaults)
    limit = None if cache_limit is None else CacheLimit(cache_limit)
    check = IndexCheck(since=first_ask([stream.folder for stream in streams]))

    def open_one(stream: Stream) -> None:
        stream.open(allow_unsafe_types=allow_unsafe_types, limit=limit, check=check)

    if len(streams) == 1:  # a thread takes longer to start than a local index to read
        open_one(streams[0])
    else:
        # The threads end before workers are forked: a fork copies the locks that threads hold.
        with ThreadPoolExecutor(min(32, len(streams))) as pool:
            for _ in pool.map(open_one, streams):  # a list would keep an error, whose traceback holds the streams
                pass
    check.warn()
    first = 0
    for stream in streams:
        stream.number_shards(first)
        first += len(stream.shards)
