"""The state of a run as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main
from tests.support.trainers.watched_ranks import Rank


def test_the_table(ranks: list[Rank], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['watch', str(tmp_path), '--text', '--once']) == 0
    text = capsys.readouterr().out
    assert f'{tmp_path}: step 102, 2 of 2 ranks' in text
    assert '1.00 s' in text  # from batch to batch
    assert main(['watch', str(tmp_path), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['total']['step'] == 102
    assert main(['watch', str(tmp_path / 'other')]) == 1
    assert 'there is no headrace.record in' in capsys.readouterr().err
