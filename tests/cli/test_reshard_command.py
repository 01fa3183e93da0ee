"""``headrace reshard``: the same samples in other shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main


def test_reshard(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ['reshard', str(data), str(tmp_path / 'out')]
    assert main([*command, '--size-limit', '1kb', '--compression', 'zstd', '--columns', 'id']) == 0
    assert '100 samples with the columns id' in capsys.readouterr().out
    assert main(command) == 1
    assert 'not empty' in capsys.readouterr().err
    assert main([*command, '--overwrite', '--order', 'shuffled', '--hashes', 'none', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found['samples'], found['order'], found['columns']) == (100, 'shuffled', ['id', 'row'])
    assert main(['verify', str(tmp_path / 'out'), '-j', '1']) == 0
