"""Known datasets of images: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from headrace.vision.imagenet import StreamingImageNet
from headrace.vision.vision_dataset import StandardTransform, StreamingVisionDataset

__all__ = ['StandardTransform', 'StreamingImageNet', 'StreamingVisionDataset']
