"""COCO: photographs with boxes around objects of 80 kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset import StreamingDataset

__all__ = ['StreamingCOCO']

Detection: TypeAlias = tuple[Any, int, tuple[int, int], npt.NDArray[np.float32], npt.NDArray[np.int64]]


class StreamingCOCO(StreamingDataset):
    """Photographs with their boxes, in the form that SSD takes.

    A sample is a tuple of

    - the image, an RGB `PIL.Image.Image`;
    - its id in the annotations;
    - its height and width in pixels;
    - its boxes, float32 of (boxes, 4): left, top, right and bottom, as parts of the width and the height;
    - their labels, int64 of (boxes,), from 1. ``classes.json`` beside the shards names them; 0 is the background.

    Args:
        transform: takes image, (height, width), boxes and labels, and returns the four. None: they stay.
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def __init__(self, *, transform: Callable[..., tuple[Any, Any, Any, Any]] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.transform = transform

    def get_item(self, sample_id: int, retry: int = 7) -> Detection:
        """Image, id, size, boxes, and labels of a sample."""
        sample = super().get_item(sample_id, retry)
        image, size = sample['img'], (sample['htot'], sample['wtot'])
        if not isinstance(image, torch.Tensor):  # `decode` of the dataset makes tensors
            image = image.convert('RGB')
        boxes, labels = sample['bbox_sizes'], sample['bbox_labels']
        if self.transform is not None:
            image, size, boxes, labels = self.transform(image, size, boxes, labels)
        return image, sample['img_id'], size, boxes, labels
