"""The normalisation of images on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from headrace.errors import ConfigError
from headrace.tensors.images import Layout

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)  # means of ImageNet's red, green and blue, of values from 0 to 1
IMAGENET_STD: Final = (0.229, 0.224, 0.225)  # their standard deviations


class NormalizeImages(nn.Module):
    """Makes floating-point numbers of uint8 images: ``(x / 255 - mean) / std``, where the images are.

    On the device this costs one pass over the batch, and the host sends a quarter of the bytes that float32 has. It has
    no parameters, and nothing in a checkpoint.

    Args:
        mean: mean of each channel, of values from 0 to 1; by default ImageNet's.
        std: standard deviation of each channel.
        layout: that of the images, 'CHW' or 'HWC'. The result is CHW for both.
        dtype: that of the result.

    Raises:
        ConfigError: an argument breaks a rule.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        layout: Layout = 'CHW',
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if layout not in ('CHW', 'HWC'):
            raise ConfigError(f"`layout` must be 'CHW' or 'HWC', but is {layout!r}.")
        if len(mean) != len(std) or not len(mean):
            raise ConfigError(f'`mean` and `std` must have one number for each channel, but are {mean} and {std}.')
        if not all(value > 0 for value in std):
            raise ConfigError(f'`std` must be greater than 0 for each channel, but is {std}.')
        if not dtype.is_floating_point:
            raise ConfigError(f'`dtype` must be a floating-point type, but is {dtype}.')
        self.layout, self.dtype = layout, dtype
        stds = torch.tensor(std, dtype=torch.float32)
        self.register_buffer('scale', (1 / (255 * stds)).reshape(-1, 1, 1), persistent=False)
        self.register_buffer(
            'shift', (-torch.tensor(mean, dtype=torch.float32) / stds).reshape(-1, 1, 1), persistent=False
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise images.

        Args:
            images: uint8[..., channels, height, width], or uint8[..., height, width, channels] with layout 'HWC'.

        Returns:
            `dtype`[..., channels, height, width], in channels-last memory if the images are.

        Raises:
            ConfigError: the images are not uint8, or have another number of channels.
        """
        if images.dtype != torch.uint8:
            raise ConfigError(f'NormalizeImages takes images of torch.uint8, but got {images.dtype}.')
        if self.layout == 'HWC':
            images = images.movedim(-1, -3)
        if images.ndim < 3 or images.shape[-3] != len(self.scale):
            raise ConfigError(
                f'NormalizeImages takes images with {len(self.scale)} channels in layout {self.layout!r}, but got the '
                f'shape {list(images.shape)}.'
            )
        # In float32 first: bfloat16 has 8 bits, which are too few for sums.
        return torch.addcmul(self.shift.float(), images.float(), self.scale.float()).to(self.dtype)
