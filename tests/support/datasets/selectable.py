"""Small datasets with columns to select by."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace import JSONWriter, MDSWriter

LANGS = ('de', 'fr', 'en')


def columns_of(i: int) -> dict[str, object]:
    """Sample i of the datasets below, without the array."""
    return {'id': i, 'lang': LANGS[i * i % 7 % 3], 'score': np.float32(i % 10 / 10), 'text': 'x' * (i % 5)}


def write_mds(folder: Path, samples: int, *, first: int = 0, size_limit: int = 1500) -> Path:
    columns = {'id': 'int', 'lang': 'str', 'score': 'float32', 'text': 'str', 'tokens': 'ndarray:int32'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=size_limit) as writer:
        for i in range(first, first + samples):
            writer.write({**columns_of(i), 'tokens': np.arange(1 + i % 4, dtype=np.int32)})
    return folder


def write_json(folder: Path, samples: int) -> Path:
    columns = {'id': 'int', 'lang': 'str', 'score': 'float', 'text': 'str'}
    with JSONWriter(out=str(folder), columns=columns, size_limit=600) as writer:
        for i in range(samples):
            writer.write({**columns_of(i), 'score': float(i % 10 / 10)})
    return folder
