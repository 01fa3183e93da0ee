"""Fixtures of cache tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.control_files import LOCK, PART
from tests.support.stores.shards import make_remote


@pytest.fixture(params=['raw', 'packed', 'two files', 'two packed files', 'subfolder'])
def remote(request, tmp_path):
    kinds = {
        'raw': {},
        'packed': {'packed': True},
        'two files': {'parts': 2},
        'two packed files': {'parts': 2, 'packed': True},
        'subfolder': {'prefix': 'a/b/'},
    }
    return make_remote(tmp_path / 'remote', **kinds[request.param])


@pytest.fixture
def plain(tmp_path):
    return make_remote(tmp_path / 'remote')


@pytest.fixture
def packed(tmp_path):
    return make_remote(tmp_path / 'remote', packed=True)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with files of somebody's, of names that headrace makes and others."""
    folder = tmp_path / 'elsewhere'
    folder.mkdir()
    for name in (PART, LOCK, 'thesis.tex', 'photo.jpg', 'ledger', 'shard.00000.mds'):
        (folder / name).write_text(f'mine: {name}')
    return folder
