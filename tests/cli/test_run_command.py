"""The commands `run`, `demo` and `completion`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.demo.proof import Proof
from headrace.cli import COMMANDS, main, run
from tests.support.programs.processes import run_program

PROGRAM = """
import os, subprocess, sys
print('of the program', flush=True)
subprocess.run(['echo', 'of its child'], check=True)
sys.exit({'none': None, 'text': 'a reason'}.get(sys.argv[1]) if sys.argv[1].isalpha() else int(sys.argv[1]))
"""


@pytest.mark.parametrize(('argument', 'status'), [('none', 0), ('3', 3), ('text', 1)])
def test_run_as_json(argument: str, status: int, tmp_path: Path) -> None:
    (tmp_path / 'program.py').write_text(PROGRAM)
    program = str(tmp_path / 'program.py')
    # In a process of its own: it changes the modules of its process, which may have those of MosaicML Streaming.
    done = run_program([sys.executable, '-m', 'headrace', 'run', '--json', program, argument], cwd=tmp_path)
    assert done.returncode == status, done.stderr
    found = json.loads(done.stdout)
    assert (found['program'], found['exit_status']) == ([program, argument], status)
    assert 'of the program\nof its child\n' in done.stderr
    assert ('a reason' in done.stderr) == (argument == 'text')


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
    monkeypatch.setattr(run, '__file__', str(tmp_path / 'site-packages' / 'headrace' / 'cli' / 'run.py'))
    assert main(['demo']) == 1
    assert 'unpack the source distribution of headrace' in capsys.readouterr().err


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish', 'tcsh'])
def test_a_script_names_all_commands(shell, capsys):
    assert main(['completion', shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert '--read-seconds' in script or shell == 'tcsh'


@pytest.mark.skipif(shutil.which('bash') is None, reason='needs bash')
@pytest.mark.parametrize(
    ('words', 'wanted'),
    [(['sim'], {'simulate'}), (['tune', '--keep'], {'--keep-order'}), (['inspect', 'tr'], {'train.yaml'})],
)
def test_bash_completes(words, wanted, tmp_path, capsys):
    main(['completion', 'bash'])
    (tmp_path / 'script').write_text(capsys.readouterr().out)
    (tmp_path / 'train.yaml').touch()
    line = ' '.join(['headrace', *words])
    program = (
        f'source ./script; COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMP_LINE="{line}"; COMP_POINT={len(line)}; '
        '_shtab_headrace; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(['bash', '-c', program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {word.strip() for word in done.stdout.split()} == wanted


def test_completion_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['completion', 'fish']) == 0
    script = capsys.readouterr().out
    assert main(['completion', 'fish', '--json']) == 0
    assert json.loads(capsys.readouterr().out) == {'shell': 'fish', 'script': script.removesuffix('\n')}
