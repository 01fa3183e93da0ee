"""Where bitmaps go in these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.dataset.streams import open_streams
from tests.support.datasets.selectable import write_mds
from tests.support.datasets.selected import SAMPLES


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where bitmaps of local streams are kept."""
    folder = tmp_path / 'private'
    monkeypatch.setattr(open_streams, 'private_folder', lambda: folder)
    return folder


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mds(tmp_path_factory.mktemp('data') / 'mds', SAMPLES)
