"""A mix of two streams, for the statistics of trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace import Stream, StreamingDataset

__all__ = ['mix']


def mix(folders: dict[str, str], cache: Path | None = None, **options: Any) -> StreamingDataset:
    """Streams with shares of 0.4 and 0.6, read where they are, or from there into folders of a cache."""
    places = [
        {'local': folder} if cache is None else {'remote': folder, 'local': str(cache / name)}
        for name, folder in folders.items()
    ]
    streams = [
        Stream(name=name, proportion=share, **place)
        for name, place, share in zip(folders, places, (0.4, 0.6), strict=True)
    ]
    return StreamingDataset(streams=streams, shuffle=True, **options)
