"""Known datasets of several media: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

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
