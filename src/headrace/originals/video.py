"""Frames of videos, decoded by PyAV."""

from __future__ import annotations

from io import BytesIO
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError, FormatError, import_optional


def decode_frames(video: bytes, count: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Frames of a video that are spread evenly over it: the middle ones of `count` equal parts.

    Args:
        video: the bytes of its file.
        count: number of frames. A video with fewer repeats some.
        size: height and width in pixels; by default those of the video.

    Returns:
        RGB, uint8 of (count, height, width, 3).

    Raises:
        FormatError: the bytes are not a video, or are damaged before the last frame that is needed.
        MissingDependencyError: PyAV is not installed.
    """
    check_frames(count, size)
    av = require_av()
    try:
        total = _count_packets(av, video)
        wanted = [(2 * part + 1) * total // (2 * count) for part in range(count)]
        frames: dict[int, npt.NDArray[np.uint8]] = {}
        with _opened(av, video) as container:
            # Workers are the parallelism; threads of each would compete with them.
            container.streams.video[0].codec_context.thread_count = 1
            needed = set(wanted)
            for number, frame in enumerate(container.decode(video=0)):
                if number in needed:
                    height, width = size or (frame.height, frame.width)
                    frames[number] = frame.to_ndarray(format='rgb24', width=width, height=height)
                if number >= wanted[-1]:
                    break
        # Packets at the end may give no frame.
        last = max(frames)
        return np.stack([frames[number if number in frames else last] for number in wanted])
    except Exception as error:  # PyAV's errors, and those of a video without a stream or a frame
        raise FormatError(_damaged(video, error)) from error


def check_video(video: bytes) -> None:
    """Read a video's packets through, and decode its first frame."""
    av = require_av()
    try:
        with _opened(av, video) as container:
            stream = container.streams.video[0]
            announced = stream.frames
            next(container.decode(stream))
        packets = _count_packets(av, video)
    except Exception as error:  # as above
        raise FormatError(_damaged(video, error)) from error
    if packets < announced:
        raise FormatError(f'A video must be whole, but this one announces {announced} frames and has {packets}.')


def _opened(av: Any, video: bytes) -> Any:
    """The container in these bytes alone: some kinds name further files and addresses, which are not opened."""
    return av.open(BytesIO(video), options={'protocol_whitelist': 'none'})


def _count_packets(av: ModuleType, video: bytes) -> int:
    with _opened(av, video) as container:
        return sum(1 for packet in container.demux(container.streams.video[0]) if packet.size)


def _damaged(video: bytes, error: Exception) -> str:
    return (
        f'A video must be whole, but {len(video)} bytes that begin with {video[:8]!r} cannot be read: '
        f'{type(error).__name__}: {error}.'
    )


def check_frames(count: int, size: tuple[int, int] | None) -> None:
    if count < 1 or (size is not None and (len(size) != 2 or min(size) < 1)):
        raise ConfigError(
            f'`frames` is 1 or more, and `frame_size` is (height, width) in pixels, but got {count} and {size}.'
        )


def require_av() -> Any:
    return import_optional('av', 'Videos need PyAV', 'video')
