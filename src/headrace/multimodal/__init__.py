"""Known datasets of several media: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.originals.media_datasets import (
        StreamingInsideWebVid,
        StreamingLAION,
        StreamingOutsideDTWebVid,
        StreamingOutsideGIWebVid,
    )
    from headrace.originals.video import decode_frames

__all__ = [
    'StreamingInsideWebVid',
    'StreamingLAION',
    'StreamingOutsideDTWebVid',
    'StreamingOutsideGIWebVid',
    'decode_frames',
]

if not TYPE_CHECKING:
    # The converters import this package, too, and need no torch.
    _HOMES = {
        **dict.fromkeys(__all__, 'headrace.originals.media_datasets'),
        'decode_frames': 'headrace.originals.video',
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
