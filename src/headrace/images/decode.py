"""From stored bytes to pixels in memory: decode, crop, resize and flip."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import interpolate

from headrace.images.image_tensor import Box, ImageTensor, choose_box, is_flipped
from headrace.images.picture import Picture, Pixels


def decode_into(out: Pixels, picture: Picture, image: ImageTensor, draws: Sequence[float] | None) -> None:
    """Decode what is kept of a picture into contiguous uint8[height, width, channels]; None: no random crop."""
    height, width = out.shape[:2]
    box = choose_box(image, picture.height, picture.width, draws)
    flipped = is_flipped(image, draws)
    if box == (0, 0, height, width) == (0, 0, picture.height, picture.width) and not flipped:
        picture.pixels(image.mode, out=out)
        return
    at_least = None
    if image.scaled and box.height > height and box.width > width:
        # The crop keeps at least the size of the result.
        at_least = math.ceil(picture.height * height / box.height), math.ceil(picture.width * width / box.width)
    pixels = picture.pixels(image.mode, at_least=at_least)
    box = _scaled(box, picture, pixels)
    # Channels-last strides, for which uint8 has a fast path.
    kept = torch.from_numpy(pixels)[None, box.top : box.top + box.height, box.left : box.left + box.width]
    kept = kept.permute(0, 3, 1, 2)
    if box[2:] != (height, width):
        if image.interpolation == 'nearest':
            kept = interpolate(kept, (height, width), mode='nearest-exact')  # the pixel at the centre, as Pillow
        else:
            kept = interpolate(kept, (height, width), mode=image.interpolation, align_corners=False, antialias=True)
    torch.from_numpy(out).copy_((kept.flip(3) if flipped else kept)[0].permute(1, 2, 0))


def _scaled(box: Box, picture: Picture, pixels: Pixels) -> Box:
    """The same part of a picture that was decoded at another size."""
    height, width = pixels.shape[:2]
    if (height, width) == (picture.height, picture.width):
        return box
    y, x = height / picture.height, width / picture.width
    top, left = round(box.top * y), round(box.left * x)
    bottom, right = round((box.top + box.height) * y), round((box.left + box.width) * x)
    return Box(top, left, max(bottom - top, 1), max(right - left, 1))
