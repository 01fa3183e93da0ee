"""Arguments that commands share: options of a store, and defaults in the help."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import main


def test_help_names_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(['simulate', '--help'])
    shown = ' '.join(capsys.readouterr().out.split())
    assert 'without waiting for data (default: 0.1)' in shown
    assert 'such as 1.2gb (default: 119mb)' in shown


@pytest.mark.parametrize('command', [['inspect', 'URL'], ['verify', 'URL'], ['cp', 'URL', 'out']])
def test_store_options(command: list[str], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(data) if part == 'URL' else part for part in command]
    assert main([*command, '--store-option', 'profil=x']) != 0
    assert 'has no extra options (but connect_timeout' in capsys.readouterr().err
    assert main([*command, '--store-option', 'profil']) != 0
    assert 'KEY=VALUE' in capsys.readouterr().err
