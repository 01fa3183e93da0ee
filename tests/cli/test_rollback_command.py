"""``headrace rollback``: kept indexes, and one that comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import StreamingDataset
from headrace.cli import main


def test_rollback(make_dataset: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset('data', 20)
    make_dataset('data/day2', 10)
    data = str(tmp_path / 'data')
    assert main(['merge', data]) == 0
    capsys.readouterr()
    assert main(['rollback', data]) == 0
    assert 'index.00001.json: 20 samples in ' in capsys.readouterr().out
    assert len(StreamingDataset(local=data, batch_size=1)) == 30
    assert main(['rollback', data, '--to', 'index.00001.json']) == 0
    assert 'index.00002.json' in capsys.readouterr().out
    assert len(StreamingDataset(local=data, batch_size=1)) == 20
    assert main(['rollback', data, '--to', 'absent']) == 1
    assert main(['rollback', data, '--json']) == 0
    assert '"samples": 30' in capsys.readouterr().out
    assert main(['rollback', f'{data}/day2']) == 0
    assert 'has no index that was replaced' in capsys.readouterr().out
