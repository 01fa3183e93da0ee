"""Rules for all commands: examples, ``--json``, a help that loads nothing heavy, and transcripts in the docs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace.cli import COMMANDS, main
from headrace.cli.datasets import ORIGINALS

ALL = [*COMMANDS, *(f'convert {name}' for name in ORIGINALS)]


HELP = """
import contextlib, io, json, sys
from headrace.cli import main
heavy = {'torch', 'numpy', 'omegaconf', 'yaml', 'tqdm', 'shtab', 'PIL', 'pyarrow', 'asyncio', 'multiprocessing'}
loaded = {}
for command in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([*command.split(), '--help'])
    loaded[command] = sorted(heavy & set(sys.modules))
print(json.dumps(loaded))
"""


@pytest.mark.parametrize('command', ALL)
def test_it_has_examples_an_exit_status_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='0'):
        main([*command.split(), '--help'])
    shown = capsys.readouterr().out
    assert f'examples:\n  headrace {command}' in shown
    assert 'Exit status: ' in shown
    assert '--json ' in shown
    assert 'SUPPRESS' not in shown
    assert '(default: None)' not in shown


def test_a_help_loads_nothing_that_takes_long() -> None:
    """`--help` and `--version` within 0.2 s."""
    program = [sys.executable, '-c', HELP, json.dumps(['', '--version', *ALL])]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=100)
    loaded = json.loads(done.stdout)
    assert len(loaded) == len(ALL) + 2
    assert {command: found for command, found in loaded.items() if found} == {}
