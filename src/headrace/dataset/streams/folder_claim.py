"""The cache folders that this process' streams have claimed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator
from pathlib import Path

from headrace.dataset.streams.stream import Stream
from headrace.errors import StreamError
from headrace.storage.cache.cached_index import marker_text

__all__ = ['claimed_folder']


# Streams alive in this process, by folder: one folder cannot be the cache of two remotes.
_folders: weakref.WeakValueDictionary[Path, Stream] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def claimed_folder(stream: Stream) -> Generator[None]:
    """Claim a folder for a stream that is opened inside the block. A failed opening ends the claim."""
    folder = stream.folder.resolve()
    other = _folders.get(folder)
    if (
        other is not None
        and other is not stream
        and marker_text(other.url or '') != marker_text(stream.url or '')  # however a folder is spelled
        and not stream.is_local
        and not other.is_local
    ):
        raise StreamError(
            f'Reused local directory: {folder} is the cache of {other.url} vs. {stream.url}. Provide a different one.'
        )
    _folders[folder] = stream
    try:
        yield
    except BaseException:
        if _folders.get(folder) is stream:
            del _folders[folder]
            if other is not None:
                _folders[folder] = other
        raise
