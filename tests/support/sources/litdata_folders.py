"""Folders that litdata writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def write(
    folder: Path, samples: list[Any], *, tokens: bool = False, chunk_size: int = 4, **how: Any
) -> dict[str, bytes]:
    """The objects that litdata writes."""
    pytest.importorskip('litdata')
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(exist_ok=True)
    writer = BinaryWriter(str(folder), chunk_size=chunk_size, item_loader=TokensLoader() if tokens else None, **how)
    for number, sample in enumerate(samples):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()
    return read(folder)


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def tensors(count: int = 10) -> list[dict[str, Any]]:
    torch = pytest.importorskip('torch')
    return [
        {
            'tokens': torch.arange(n + 1),
            'half': torch.full((n + 1,), 1.5, dtype=torch.bfloat16).float(),
            'matrix': torch.full((2, n + 1), n, dtype=torch.float16),
            'label': torch.tensor(n),
            'mask': torch.tensor([[True, n % 2 == 0]]),
            'row': np.arange(3, dtype=np.uint16) * n,
            'table': np.full((2, 2), n / 2),
            'id': n,
            'name': f'n{n}',
        }
        for n in range(count)
    ]
