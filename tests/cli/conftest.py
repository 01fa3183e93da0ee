"""Fixtures of cli tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def data(make_dataset: Any) -> Path:
    return make_dataset(hashes=['sha1'])
