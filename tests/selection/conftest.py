"""Where bitmaps go in these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.dataset.streams import open_streams


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where bitmaps of local streams are kept."""
    folder = tmp_path / 'private'
    monkeypatch.setattr(open_streams, 'private_folder', lambda: folder)
    return folder
