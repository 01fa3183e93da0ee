"""CIFAR-10: small photographs of ten classes."""

from __future__ import annotations

from headrace.vision.vision_dataset import StreamingVisionDataset

__all__ = ['StreamingCIFAR10']


class StreamingCIFAR10(StreamingVisionDataset):
    """Pairs of a photograph of 32 x 32 pixels and its class, from 0 to 9; ``classes.json`` names the classes.

    The arguments are those of `StreamingVisionDataset`. `headrace.vision.convert.cifar10` writes the dataset.
    """
