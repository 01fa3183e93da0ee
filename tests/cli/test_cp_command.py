"""``headrace cp``: a dataset from one folder to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main


def test_cp(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['cp', str(data), str(tmp_path / 'out')]) == 0
    assert '0 were there' in capsys.readouterr().out
    assert main(['cp', str(data), str(tmp_path / 'out'), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['copied'] == 0
    assert main(['verify', str(tmp_path / 'out')]) == 0
    (tmp_path / 'out' / 'index.json').write_text('{"version": 2, "shards": []}')
    assert main(['cp', str(data), str(tmp_path / 'out')]) == 1
    error = capsys.readouterr().err
    assert 'of another dataset already' in error
    assert error.count('\n') == 1
    assert main(['cp', str(data), str(tmp_path / 'out'), '--overwrite']) == 0
