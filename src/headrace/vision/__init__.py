"""Known datasets of images: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

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
