"""Versions of packages."""

from __future__ import annotations

from importlib import metadata

import pytest

from headrace.doctor import check_versions
from tests.support.datasets.answers import levels


class TestVersions:
    def test_what_the_tests_run_with_is_right(self):
        findings = list(check_versions())
        assert {'python', 'torch', 'numpy'} <= {finding.what for finding in findings}
        assert set(levels(findings)) == {'ok'}

    @pytest.mark.parametrize(
        ('installed', 'level', 'text'),
        [
            ({'torch': '2.5.1'}, 'problem', '2.5.1 is installed, headrace wants >=2.6'),
            ({'torch': '2.13.0+cpu'}, 'ok', '2.13.0+cpu'),
            ({'torch': '2.13.0', 'mosaicml': '0.32.1'}, 'problem', '2.13.0 is installed, headrace wants <2.7.1,>=2.6'),
            ({}, 'problem', 'is not installed'),
        ],
    )
    def test_a_range_holds_where_its_extra_is_used(self, monkeypatch, installed, level, text):
        def version(name):
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(metadata, 'version', version)
        (torch,) = [finding for finding in check_versions() if finding.what == 'torch']
        assert (torch.level, torch.text) == (level, text)
