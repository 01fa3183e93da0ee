"""Datasets of pairs of an image and a target, with the transforms of torchvision's `VisionDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError

__all__ = ['StandardTransform', 'StreamingVisionDataset']


class StandardTransform:
    """Two transforms as one of a pair: an image without a transform becomes a tensor, a target stays.

    Args:
        transform: takes an image, a `PIL.Image.Image`. None: see `to_tensor`.
        target_transform: takes a target. None: it stays as it is.
    """

    def __init__(
        self, transform: Callable[[Any], Any] | None = None, target_transform: Callable[[Any], Any] | None = None
    ) -> None:
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """The transformed image and target."""
        x = to_tensor(x) if self.transform is None else self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)


class StreamingVisionDataset(StreamingDataset):
    """Pairs of the columns ``x``, an image, and ``y``, its target.

    Args:
        transforms: takes an image and a target, and returns both. It excludes the other two.
        transform: takes an image, a `PIL.Image.Image`. None: see `to_tensor`.
        target_transform: takes a target. None: it stays as it is.
        arguments: those of `headrace.StreamingDataset`, by name.

    Raises:
        ConfigError: `transforms` is given together with one of the others.
    """

    def __init__(
        self,
        *,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ConfigError(
                'Give either `transforms`, which takes image and target, or `transform` and `target_transform`, but '
                'got both.'
            )
        super().__init__(**arguments)
        self.transform, self.target_transform = transform, target_transform
        self.transforms = StandardTransform(transform, target_transform) if transforms is None else transforms

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """The transformed image and target of a sample."""
        sample = super().get_item(sample_id, retry)
        return self.transforms(self._image(sample['x']), sample['y'])

    def _image(self, image: Any) -> Any:
        """The image that the transforms get."""
        return image


def to_tensor(image: Any) -> torch.Tensor:
    """A PIL image as a float32 tensor of (channels, height, width); 8-bit values become 0 to 1, others stay.

    A tensor, which `decode` of the dataset makes, stays as it is.
    """
    if isinstance(image, torch.Tensor):
        return image
    pixels = np.array(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return tensor.to(torch.float32).div(255) if tensor.dtype == torch.uint8 else tensor.to(torch.float32)
