from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli import COMMANDS, main
from headrace.errors import ConfigError


def test_the_command_is_installed_and_says_its_version() -> None:
    command = Path(sys.executable).with_name('headrace')

    done = subprocess.run([command, '--version'], capture_output=True, text=True, check=True)

    assert done.stdout == f'headrace {headrace.__version__}\n'


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='0'):
        main(['--help'])

    shown = capsys.readouterr().out.split('COMMAND', 2)[2]
    assert all(name in shown.split() and command.help[:20] in shown for name, command in COMMANDS.items())


@pytest.mark.parametrize('arguments', [[], ['dmeo'], ['demo', '--store', 'ftp']])
def test_a_wrong_command_line_is_refused_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match='2'):
        main(arguments)

    assert 'usage: headrace' in capsys.readouterr().err


def test_demo_hands_its_arguments_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    def run_demo(*args: Any, **kwargs: Any) -> int:
        calls.append((args, kwargs))
        return []

    monkeypatch.setattr('examples.demo.run.run_demo', run_demo)

    assert main(['demo', '--out', str(tmp_path), '--store', 's3', '--framework', 'composer']) == 0
    assert main(['demo']) == 0
    assert calls == [
        ((tmp_path,), {'store': 's3', 'frameworks': ('composer',)}),
        ((Path('demo-output'),), {'store': 'local', 'frameworks': ('lightning', 'composer')}),
    ]


def test_an_error_of_ours_is_a_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_demo(*args: Any, **kwargs: Any) -> int:
        raise ConfigError('choose another --out')

    monkeypatch.setattr('examples.demo.run.run_demo', run_demo)

    assert main(['demo']) == 1
    assert capsys.readouterr().err == 'headrace: choose another --out\n'
