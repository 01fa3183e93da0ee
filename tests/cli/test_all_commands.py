"""What all commands have: examples, ``--json``, a help that loads nothing heavy, and transcripts in the docs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli import COMMANDS, main
from headrace.cli.originals import ORIGINALS
from headrace.demo.proof import Proof
from processes import run_program

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


def test_convert_config_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'foundry.yaml').write_text(
        'train_loader:\n  name: text\n  dataset: {local: data, shuffle: true, num_canonical_nodes: 128}\n'
        'global_train_batch_size: 8\n'
    )
    assert main(['convert-config', str(tmp_path / 'foundry.yaml'), '--native', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['config']['train']['shuffle']
    assert any('num_canonical_nodes: 128' in note for note in found['notes'])


def test_completion_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['completion', 'fish']) == 0
    script = capsys.readouterr().out
    assert main(['completion', 'fish', '--json']) == 0
    assert json.loads(capsys.readouterr().out) == {'shell': 'fish', 'script': script.removesuffix('\n')}


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

    monkeypatch.setattr('headrace.demo.run.run_demo', run_demo)
    assert main(['demo', '--out', str(tmp_path), '--json']) == 0
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert (found['holds'], found['proofs']['lightning']['expected']) == (True, 7)
    assert shown.err == 'shown\n'
    proof = Proof(**{**numbers, 'expected': 7, 'seen': 6, 'lost': 1})
    assert main(['demo', '--out', str(tmp_path), '--json']) == 1
    assert not json.loads(capfd.readouterr().out)['holds']


def test_init_as_json(tmp_path: Path, make_dataset: Any, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ['--data', str(make_dataset()), '--out', str(tmp_path / 'first'), '--yes']
    assert main(['init', *arguments, '--json']) == 0
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert found['files'] == [str(tmp_path / 'first' / name) for name in ('config.yaml', 'train.py')]
    assert found['next'] == [f'python {tmp_path / "first" / "train.py"}']
    assert 'Found mds' in shown.err
