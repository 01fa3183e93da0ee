"""``headrace demo``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.demo.proof import Proof
from headrace.cli import demo, main


def test_demo_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: dict[str, Any] = dict.fromkeys(Proof.__dataclass_fields__, 0)
    proof = Proof(**{**numbers, 'expected': 7, 'seen': 7})

    def run_demo(*_: object, **__: object) -> list[Any]:
        print('shown')
        return [SimpleNamespace(framework='lightning', proof=proof)]

    monkeypatch.setattr('examples.demo.run.run_demo', run_demo)
    assert main(['demo', '--out', str(tmp_path), '--json']) == 0
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert (found['holds'], found['proofs']['lightning']['expected']) == (True, 7)
    assert shown.err == 'shown\n'
    proof = Proof(**{**numbers, 'expected': 7, 'seen': 6, 'lost': 1})
    assert main(['demo', '--out', str(tmp_path), '--json']) == 1
    assert not json.loads(capfd.readouterr().out)['holds']


def test_an_installed_headrace_says_how_to_get_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, '__file__', str(tmp_path / 'site-packages' / 'headrace' / 'cli' / 'demo.py'))
    assert main(['demo']) == 1
    assert 'unpack the source distribution of headrace' in capsys.readouterr().err
