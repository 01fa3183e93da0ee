"""The versions in the record of a run."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import numpy as np

import headrace
from headrace.watching import versions


def test_a_copy_of_the_sources_has_a_version_too(monkeypatch):
    def version(name: str) -> str:
        if name == 'headrace':
            raise PackageNotFoundError(name)
        return '1.2'

    monkeypatch.setattr(versions, 'version', version)
    assert versions.library_versions()['headrace'] == headrace.__version__


def test_the_version_of_an_installed_library_is_that_of_its_package():
    assert versions.library_versions()['numpy'] == np.__version__
