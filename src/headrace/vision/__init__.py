"""Known datasets of images: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.originals.image_datasets import (
        StandardTransform,
        StreamingADE20K,
        StreamingCIFAR10,
        StreamingCOCO,
        StreamingImageNet,
        StreamingVisionDataset,
    )

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
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, 'headrace.originals.image_datasets'))
