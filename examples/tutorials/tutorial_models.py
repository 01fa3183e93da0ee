"""A small ResNet, for the tutorials that are about images and not about networks."""

from __future__ import annotations

import torch
from torch import nn

from headrace import NormalizeImages


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Identity() if stride == 1 and channels == out else nn.Conv2d(channels, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def small_resnet(classes: int, width: int = 16) -> nn.Module:
    """A ResNet of four blocks: uint8[rows, 3, height, width] to logits, float32[rows, classes]."""
    return nn.Sequential(
        NormalizeImages(),
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Block(width, width, 1), Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
    )  # fmt: skip
