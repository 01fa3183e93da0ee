"""``headrace inspect``, ``verify``, ``cp``, ``merge`` and ``reshard``: what they print, and their exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import COMMANDS, main

LOOK = ('cp', 'inspect', 'merge', 'reshard', 'verify')


@pytest.mark.parametrize('command', LOOK)
def test_help_has_examples_and_the_exit_status(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, '--help'])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f'  headrace {command} ' in shown
    assert 'Exit status: 0' in shown
    assert '--json' in shown
    assert COMMANDS[command].help in shown


def test_names_in_errors_are_without_control_characters(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = json.loads((data / 'index.json').read_text())
    index['shards'][0]['raw_data']['basename'] = 'a\x1b[2Jb'
    (data / 'index.json').write_text(json.dumps(index))
    assert main(['inspect', str(data)]) == 1
    assert main(['cp', str(data), str(data.parent / 'out')]) == 1
    assert main(['verify', str(data), '-j', '1']) == 1
    out, error = capsys.readouterr()
    assert '\x1b' not in out + error
    assert 'a\\x1b[2Jb' in error
