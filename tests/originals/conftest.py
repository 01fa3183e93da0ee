"""Fixtures of text tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def parser() -> None:
    pytest.importorskip('mwparserfromhell')
