"""Known datasets of several media: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.multimodal.laion import StreamingLAION
    from headrace.multimodal.video import decode_frames
    from headrace.multimodal.webvid import StreamingInsideWebVid, StreamingOutsideDTWebVid, StreamingOutsideGIWebVid

__all__ = [
    'StreamingInsideWebVid',
    'StreamingLAION',
    'StreamingOutsideDTWebVid',
    'StreamingOutsideGIWebVid',
    'decode_frames',
]

if not TYPE_CHECKING:
    # The converters import this package, too, and need no torch.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'StreamingInsideWebVid': 'headrace.multimodal.webvid',
            'StreamingLAION': 'headrace.multimodal.laion',
            'StreamingOutsideDTWebVid': 'headrace.multimodal.webvid',
            'StreamingOutsideGIWebVid': 'headrace.multimodal.webvid',
            'decode_frames': 'headrace.multimodal.video',
        },
    )
