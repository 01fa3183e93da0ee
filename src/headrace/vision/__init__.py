"""Known datasets of images: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.vision.ade20k import StreamingADE20K
    from headrace.vision.cifar10 import StreamingCIFAR10
    from headrace.vision.coco import StreamingCOCO
    from headrace.vision.imagenet import StreamingImageNet
    from headrace.vision.vision_dataset import StandardTransform, StreamingVisionDataset

__all__ = [
    'StandardTransform',
    'StreamingADE20K',
    'StreamingCIFAR10',
    'StreamingCOCO',
    'StreamingImageNet',
    'StreamingVisionDataset',
]

if not TYPE_CHECKING:
    # The converters import this package, too, and need no torch.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'StandardTransform': 'headrace.vision.vision_dataset',
            'StreamingADE20K': 'headrace.vision.ade20k',
            'StreamingCIFAR10': 'headrace.vision.cifar10',
            'StreamingCOCO': 'headrace.vision.coco',
            'StreamingImageNet': 'headrace.vision.imagenet',
            'StreamingVisionDataset': 'headrace.vision.vision_dataset',
        },
    )
