"""Shared parts of WebVid's converters: the columns, and videos as files outside of shards."""

from __future__ import annotations

from functools import cache
from typing import Final

from headrace.convert.record import put_bytes
from headrace.errors import StorageError
from headrace.storage import Retry, Store, StoreOptions, open_store

__all__ = ['COLUMNS', 'put_video']

COLUMNS: Final = {
    'videoid': 'str',
    'name': 'str',
    'page_idx': 'str',
    'page_dir': 'str',
    'duration': 'int',
    'contentUrl': 'str',
}
"""Columns of the table, and their encodings in shards. ``content`` or ``content_path`` comes beside them."""


@cache
def _store(url: str) -> Store:
    return open_store(url, StoreOptions())


def put_video(url: str, path: str, video: bytes) -> None:
    """Write a video to a folder or URL, whole or not at all.

    Raises:
        StorageError: it cannot be written. No input is to blame for that.
    """
    try:
        put_bytes(_store(url), path, video, Retry())
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f'Writing {url}/{path} failed: {error}. Correct it and run the conversion again.') from error
