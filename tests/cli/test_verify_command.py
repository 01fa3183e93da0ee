"""``headrace verify``: good, bad and absent datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main


def damage(data: Path) -> None:
    path = data / 'shard.00001.mds'
    path.write_bytes(path.read_bytes()[:-1] + b'?')


@pytest.mark.parametrize('arguments', [[], ['--fast'], ['-j', '2'], ['--state', 'state']])
def test_verify_of_a_good_dataset(
    data: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    assert main(['verify', 'data', *arguments]) == 0
    assert 'with 100 samples in all' in capsys.readouterr().out
    assert main(['verify', 'data', *arguments, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['ok'] is True


def test_verify_of_a_bad_dataset(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(data)
    assert main(['verify', str(data), '-j', '1']) == 1
    assert 'bad shard 1 (shard.00001.mds): checksum: ' in capsys.readouterr().out
    assert main(['verify', str(data), '-j', '1', '--json']) == 1
    assert json.loads(capsys.readouterr().out)['bad'][0]['check'] == 'checksum'


def test_verify_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['verify', str(tmp_path)]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert error.startswith('headrace: ')
    assert error.count('\n') == 1
