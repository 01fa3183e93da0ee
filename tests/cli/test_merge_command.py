"""``headrace merge``: one index of parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main


def test_merge(make_dataset: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(('b', 'a')):
        make_dataset(f'all/{name}', 30, first=30 * number)
    assert main(['merge', str(tmp_path / 'all')]) == 0
    assert 'with 60 samples' in capsys.readouterr().out
    assert main(['inspect', str(tmp_path / 'all'), '--json', '--samples', '1']) == 0
    assert json.loads(capsys.readouterr().out)['first_samples'][0]['id']['value'] == 30
    parts = [str(tmp_path / 'all' / name / 'index.json') for name in ('b', 'a')]
    assert main(['merge', str(tmp_path / 'all'), *parts, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['samples'] == 60
    assert main(['inspect', str(tmp_path / 'all'), '--json', '--samples', '1']) == 0
    assert json.loads(capsys.readouterr().out)['first_samples'][0]['id']['value'] == 0
    assert main(['verify', str(tmp_path / 'all'), '-j', '1']) == 0
    assert main(['merge', str(tmp_path / 'nothing')]) == 1
