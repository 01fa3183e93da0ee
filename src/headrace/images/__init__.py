"""Stored pictures as uint8 tensors: decoding, cropping, resizing and flipping, and the normalisation on the device.

1. `image_tensor` has the settings of a column, and chooses the part of a picture to keep.
2. `picture` decodes bytes. `decode` crops, resizes and flips them into memory.
3. `normalize` makes floating-point numbers of a batch.

`decode` and `normalize` import torch, which a YAML file is read without.
"""

from __future__ import annotations

from headrace.images.image_tensor import NUM_DRAWS, ImageTensor
from headrace.images.picture import Picture, open_picture

__all__ = ['NUM_DRAWS', 'ImageTensor', 'Picture', 'open_picture']
