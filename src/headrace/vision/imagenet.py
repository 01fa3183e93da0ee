"""ImageNet: photographs of 1,000 classes."""

from __future__ import annotations

from typing import Any

import torch

from headrace.vision.vision_dataset import StreamingVisionDataset

__all__ = ['StreamingImageNet']


class StreamingImageNet(StreamingVisionDataset):
    """Pairs of a photograph and the number of its class, from 0; ``classes.json`` beside the shards names the classes.

    Photographs are RGB: the few in grey or CMYK are converted. The arguments are those of `StreamingVisionDataset`.
    `headrace.vision.convert.imagenet` writes the dataset.
    """

    def _image(self, image: Any) -> Any:
        return image if isinstance(image, torch.Tensor) or image.mode == 'RGB' else image.convert('RGB')
