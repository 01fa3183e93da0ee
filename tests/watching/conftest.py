"""Fixtures of watching tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers.recorded_runs import SIZES
from tests.support.trainers.watched_ranks import Rank


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory, make_dataset_in: Any) -> Path:
    root = tmp_path_factory.mktemp('data')
    for name, size in (('a', 40), ('b', 60)):
        make_dataset_in(root, name, size)
    return root


@pytest.fixture
def ranks(data: Path, tmp_path: Path) -> list[Rank]:
    found = [Rank(data, tmp_path, rank) for rank in range(2)]
    found[0].train(1.0, 1.0, 1.0)
    found[1].train(2.0, 1.0)
    return found


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory, make_dataset_in) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('data')
    return {name: make_dataset_in(root, name, size, first=1000 * (name == 'b')) for name, size in SIZES.items()}
