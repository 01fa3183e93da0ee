"""Rows of images, for the tutorials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes


def show_images(images: torch.Tensor, titles: Sequence[str], path: Path) -> list[Axes]:
    """Draw images side by side, and save the picture. A notebook shows it.

    Args:
        images: uint8[count, 3, height, width].
        titles: one for each image.
        path: where the picture is saved.

    Returns:
        The axes of each image, in pixels.
    """
    figure, axes = plt.subplots(1, len(images), figsize=(1.3 * len(images), 1.7), squeeze=False)
    for place, image, title in zip(axes[0], images, titles, strict=True):
        place.imshow(image.permute(1, 2, 0))
        place.set_title(title, fontsize=9)
        place.axis('off')
    figure.tight_layout()
    figure.savefig(path)
    return list(axes[0])
