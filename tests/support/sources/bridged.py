"""Datasets of other libraries, and their rows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def jpeg(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(i).integers(0, 255, (8, 8, 3), np.uint8)).save(file, 'JPEG')
    return file.getvalue()


def row_of(i: int) -> dict[str, Any]:
    return {
        'id': i, 'text': f'téxt {i}', 'image': jpeg(i), 'raw': Image.new('L', (2, 3), i),
        'meta': {'a': [i]} if i % 2 else i, 'vector': np.full(3, i, np.float32), 'grid': np.full((2, 2), i, np.int16),
        'ragged': np.arange(i + 1, dtype=np.int32),
        'number': i, 'half': np.float16(i / 2), 'data': bytes([i]), 'exact': f'{i}.10', 'late': i,
    }  # fmt: skip
