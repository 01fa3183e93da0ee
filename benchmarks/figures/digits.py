"""scikit-learn's handwritten digits, and a small CNN that learns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

BATCH = 32
TRAINED = 1200
"""Of the 1,797 digits; the others are the test."""


class Digits(NamedTuple):
    """Images uint8[N, 8, 8] and labels int64[N]."""

    images: Any
    labels: Any


def load() -> tuple[Digits, Digits]:
    """The digits to train, in a fixed random order, and those to test."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = (found.images[order] * 15).astype(np.uint8), found.target[order].astype(np.int64)
    return Digits(images[:TRAINED], labels[:TRAINED]), Digits(images[TRAINED:], labels[TRAINED:])


Epoch = Callable[[int], Iterable[tuple[Any, Any]]]
"""From an epoch's number to its batches: images uint8[rows, 8, 8] and labels int64[rows], as tensors."""


def learn(epoch: Epoch, epochs: int, test: Digits, seed: int) -> list[float]:
    """Train a CNN, whose initial weights are those of the seed; returns the accuracy in percent after each epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pixels, labels = torch.from_numpy(test.images)[:, None] / 255, torch.from_numpy(test.labels)
    accuracies: list[float] = []
    for number in range(epochs):
        for images, targets in epoch(number):
            loss = nn.functional.cross_entropy(model(images[:, None] / 255), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracies.append(100 * float((model(pixels).argmax(1) == labels).double().mean()))
    return accuracies
