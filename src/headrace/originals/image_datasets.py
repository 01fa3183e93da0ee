"""Datasets of images: pairs of an image and a target, as torchvision's `VisionDataset`; and COCO's boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError
from headrace.format.encodings.images import in_mode

_Detection: TypeAlias = tuple[Any, int, tuple[int, int], npt.NDArray[np.float32], npt.NDArray[np.int64]]


class StandardTransform:
    """Two transforms as one of a pair: an image without a transform becomes a tensor, a target stays.

    Args:
        transform: takes an image, a `PIL.Image.Image`. None: see `to_tensor`.
        target_transform: takes a target. By default it stays as it is.
    """

    def __init__(
        self, transform: Callable[[Any], Any] | None = None, target_transform: Callable[[Any], Any] | None = None
    ) -> None:
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        x = to_tensor(x) if self.transform is None else self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)


class StreamingVisionDataset(StreamingDataset):
    """Pairs of the columns ``x``, an image, and ``y``, its target.

    Args:
        transforms: takes an image and a target, and returns both. It excludes the other two.
        transform: takes an image, a `PIL.Image.Image`. None: see `to_tensor`.
        target_transform: takes a target. By default it stays as it is.
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
        return image


def to_tensor(image: Any) -> torch.Tensor:
    """An image as float32 (channels, height, width); 8-bit values become 0 to 1. A tensor stays."""
    if isinstance(image, torch.Tensor):
        return image
    pixels = np.array(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return tensor.to(torch.float32).div(255) if tensor.dtype == torch.uint8 else tensor.to(torch.float32)


class StreamingCIFAR10(StreamingVisionDataset):
    """Pairs of a photograph of 32 x 32 pixels and its class, from 0 to 9; ``classes.json`` names the classes.

    The arguments are those of `StreamingVisionDataset`. `headrace.vision.convert.cifar10` writes the dataset.
    """


class StreamingImageNet(StreamingVisionDataset):
    """Pairs of a photograph and the number of its class, from 0; ``classes.json`` beside the shards names the classes.

    Photographs are RGB: the few in grey or CMYK are converted. The arguments are those of `StreamingVisionDataset`.
    `headrace.vision.convert.imagenet` writes the dataset.
    """

    def _image(self, image: Any) -> Any:
        return image if isinstance(image, torch.Tensor) else in_mode(image, 'RGB')


class StreamingADE20K(StreamingDataset):
    """Pairs of a scene and its annotation: an image whose pixels are classes, 0 for none of the 150.

    Args:
        joint_transform: takes the pair (scene, annotation), two `PIL.Image.Image`s, and returns a pair. It comes first.
        transform: takes the scene, and returns one. None: it stays.
        target_transform: takes the annotation, and returns one. None: it stays.
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def __init__(
        self,
        *,
        joint_transform: Callable[[tuple[Any, Any]], tuple[Any, Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.joint_transform, self.transform, self.target_transform = joint_transform, transform, target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """The transformed scene and annotation of a sample."""
        sample = super().get_item(sample_id, retry)
        scene, annotation = sample['x'], sample['y']
        if self.joint_transform is not None:
            scene, annotation = self.joint_transform((scene, annotation))
        if self.transform is not None:
            scene = self.transform(scene)
        if self.target_transform is not None:
            annotation = self.target_transform(annotation)
        return scene, annotation


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

    def get_item(self, sample_id: int, retry: int = 7) -> _Detection:
        """Image, id, size, boxes, and labels of a sample."""
        sample = super().get_item(sample_id, retry)
        image, size = sample['img'], (sample['htot'], sample['wtot'])
        if not isinstance(image, torch.Tensor):  # `decode` of the dataset makes tensors
            image = in_mode(image, 'RGB')
        boxes, labels = sample['bbox_sizes'], sample['bbox_labels']
        if self.transform is not None:
            image, size, boxes, labels = self.transform(image, size, boxes, labels)
        return image, sample['img_id'], size, boxes, labels
