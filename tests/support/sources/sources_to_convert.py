"""Small data of every kind, and the rows that they have."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from headrace import LocalDataset

__all__ = ['digests', 'make_images', 'rows_of']


def make_images(root: Path, classes: dict[str, int], *, extension: str = 'jpg') -> None:
    """Images of noise: one folder a class, every third image in a folder of its own."""
    random = np.random.default_rng(7)
    for name, count in classes.items():
        for i in range(count):
            folder = root / name / ('deeper' if i % 3 == 1 else '')
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f'{i * 7 % 10}-{i}.{extension}')


def rows_of(folder: Path | str) -> list[dict[str, Any]]:
    dataset = LocalDataset(str(folder))
    return [dataset[i] for i in range(len(dataset))]


def digests(folder: Path) -> dict[str, str]:
    """All files, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha1(path.read_bytes()).hexdigest()
        for path in folder.rglob('*')
        if path.is_file()
    }
