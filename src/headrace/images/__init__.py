"""Stored pictures as uint8 tensors: decoding, cropping, resizing and flipping, and the normalisation on the device.

1. `image_tensor` has the settings of a column, and reads them from Python and YAML.
2. `crop` chooses the part of a picture to keep.
3. `picture` decodes bytes. `decode` crops, resizes and flips them into memory.
4. `normalize` makes floating-point numbers of a batch.

`decode` and `normalize` import torch, which a YAML file is read without.
"""

from __future__ import annotations

from headrace.images.crop import NUM_DRAWS
from headrace.images.image_tensor import Decode, DecodeLike, ImageTensor
from headrace.images.picture import Picture, open_picture

__all__ = ['NUM_DRAWS', 'Decode', 'DecodeLike', 'ImageTensor', 'Picture', 'open_picture']
