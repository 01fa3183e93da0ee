"""LAION-400M: images of the Web with their captions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.dataset import StreamingDataset
from headrace.errors import FormatError
from headrace.format.encodings.images import open_image

__all__ = ['StreamingLAION']


class StreamingLAION(StreamingDataset):
    """Images with captions. A sample has ``image``, and the other columns of the shards, such as ``caption``.

    `headrace.multimodal.convert.laion400m` writes the dataset; shards of MosaicML Streaming's script are read, too.

    Args:
        transform: takes an image, a `PIL.Image.Image` in RGB. None: a uint8 tensor of (3, height, width).
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def __init__(self, *, transform: Callable[[Any], Any] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.transform = _to_tensor if transform is None else transform

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """A sample.

        Raises:
            FormatError: its image cannot be decoded. MosaicML's script keeps rows without one.
        """
        sample = super().get_item(sample_id, retry)
        data = sample.pop('jpg')
        return {'image': self.transform(_decoded(data, sample)), **sample}


def _decoded(data: bytes, sample: dict[str, Any]) -> Any:
    try:
        return open_image('bytes', data).convert('RGB')
    except Exception as error:  # Pillow's decoders raise many kinds
        reason = sample.get('error_message') or f'{type(error).__name__}: {error}'
        raise FormatError(
            f'The image of {sample.get("url")} ({len(data)} bytes) cannot be decoded: {reason}.'
        ) from None


def _to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())
