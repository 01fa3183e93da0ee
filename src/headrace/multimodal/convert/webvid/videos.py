"""Shared parts of WebVid's converters: the columns, and videos as files outside of shards."""

from __future__ import annotations

from functools import cache
from typing import Final

from headrace.dataset.writing.place import StorePlace
from headrace.errors import StorageError
from headrace.storage import Retry, open_store

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
def _place(url: str) -> StorePlace:
    return StorePlace(open_store(url), Retry())


def put_video(url: str, path: str, video: bytes) -> None:
    """Write a video to a folder or URL, whole or not at all.

    Raises:
        StorageError: it cannot be written. No input is to blame for that.
    """
    try:
        _place(url).write(path, video)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f'Writing {url}/{path} failed: {error}. Correct it and run the conversion again.') from error
