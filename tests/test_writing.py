"""The code of docs/writing.md runs as it is pasted."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headrace import StreamingDataset
from headrace.format.encodings.encoding import ENCODINGS
from tests.support.pages.page_code import DOCS, run_page


@pytest.mark.once
def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip('PIL.Image')
    try:
        run_page((DOCS / 'writing.md').read_text(), tmp_path, monkeypatch)
        sizes = {'data': 120, 'tokens': 2500, 'photos': 1, 'resumed': 100, 'points': 1}
        found = {name: StreamingDataset(local=name)[:] for name in sizes}
    finally:
        ENCODINGS.pop('Point', None)
    assert {name: len(rows) for name, rows in found.items()} == sizes
    stored = io.BytesIO()
    image.open('a.jpg').save(stored, 'PNG')
    assert found['photos'][0]['image'].tobytes() == image.open(stored).tobytes()
    assert found['points'][0]['at'] == (1, 2)
