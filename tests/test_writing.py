"""The code of docs/writing.md runs as it is written."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.format import Encoding
from headrace.format.encodings.encoding import ENCODINGS

PAGE = (Path(__file__).parents[1] / 'docs' / 'writing.md').read_text()
BLOCKS = re.findall(r'```python\n(.*?)```', PAGE, re.DOTALL)


class Point(Encoding):
    """Two small numbers."""

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, data: Any) -> Any:
        return tuple(data)


def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip('PIL.Image')
    monkeypatch.chdir(tmp_path)
    image.new('L', (4, 3)).save('a.jpg')
    np.zeros((2500, 2048), np.uint16).tofile('tokens.bin')
    samples = [{'id': i, 'text': str(i)} for i in range(100)]
    given = {
        'MDSWriter': MDSWriter, 'np': np, 'Point': Point, 'samples': samples, 'new_samples': samples,
        'columns': {'id': 'int', 'text': 'str'}, 'photos': [('a.jpg', 1)],
    }  # fmt: skip
    found = {}
    for number, block in enumerate(BLOCKS):
        names = dict(given)
        exec(block.replace('s3://bucket/data', f'file://{tmp_path}/{number}'), names)
        writer = names['writer']
        local = str(writer.local) if writer.remote is None else writer.remote.removeprefix('file://')
        found[number] = StreamingDataset(local=local)[:]
    del ENCODINGS['Point']
    assert [len(rows) for rows in found.values()] == [100, 2500, 1, 100, 100, 1]
    stored = io.BytesIO()
    image.open('a.jpg').save(stored, 'PNG')
    assert found[2][0]['image'].tobytes() == image.open(stored).tobytes()
    assert found[5][0]['at'] == (1, 2)
