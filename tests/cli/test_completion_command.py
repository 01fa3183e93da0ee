"""The scripts of ``headrace completion``: shells read them, and complete by them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from headrace.cli import COMMANDS, main


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
