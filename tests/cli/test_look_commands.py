"""``headrace inspect``, ``verify``, ``cp``, ``merge`` and ``reshard``: what they print, and their exit status."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import MDSWriter
from headrace.cli import COMMANDS, main
from headrace.cli.previews import print_preview
from headrace.inspect import describe_decoded

LOOK = ('cp', 'inspect', 'merge', 'reshard', 'verify')


@pytest.fixture
def data(make_dataset: Any) -> Path:
    return make_dataset(hashes=['sha1'])


def damage(data: Path) -> None:
    path = data / 'shard.00001.mds'
    path.write_bytes(path.read_bytes()[:-1] + b'?')


@pytest.mark.parametrize('command', LOOK)
def test_help_has_examples_and_the_exit_status(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, '--help'])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f'  headrace {command} ' in shown
    assert 'Exit status: 0' in shown
    assert '--json' in shown
    assert COMMANDS[command].HELP in shown


def test_help_names_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(['simulate', '--help'])
    shown = ' '.join(capsys.readouterr().out.split())
    assert 'without waiting for data (default: 0.1)' in shown
    assert 'such as 1.2gb (default: 119mb)' in shown


def test_inspect(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['inspect', str(data), '--samples', '1']) == 0
    shown = capsys.readouterr().out
    assert 'ndarray:float32:4' in shown
    assert 'sample 0' in shown
    assert 'sample 1' not in shown
    assert main(['inspect', str(data), '--json', '--samples', '2']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['samples'] == 100
    assert [each['id']['value'] for each in found['first_samples']] == [0, 1]


def test_inspect_saves_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = b'\x89PNG\r\n\x1a\n and so on'
    with MDSWriter(out=str(tmp_path / 'data'), columns={'b': 'bytes'}) as writer:
        writer.write({'b': png})
    assert main(['inspect', str(tmp_path / 'data'), '--save', str(tmp_path / 'out')]) == 0
    assert '1 pictures saved' in capsys.readouterr().out
    assert [path.read_bytes() for path in (tmp_path / 'out').iterdir()] == [png]


def test_inspect_shows_thumbnails_in_a_terminal_with_colours(tmp_path: Path) -> None:
    image = pytest.importorskip('PIL.Image')
    with MDSWriter(out=str(tmp_path / 'data'), columns={'p': 'png'}) as writer:
        writer.write({'p': image.new('RGB', (4, 4), (1, 2, 3))})
    ours, theirs = pty.openpty()
    environ = {**os.environ, 'TERM': 'xterm-256color', 'NO_COLOR': ''}
    program = [sys.executable, '-m', 'headrace.cli', 'inspect', str(tmp_path / 'data')]
    with subprocess.Popen(program, stdout=theirs, env=environ) as running:
        os.close(theirs)
        shown = b''
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # Linux says so when the other end is closed
            pass
        os.close(ours)
    assert running.returncode == 0
    assert '\x1b[38;2;1;2;3;48;2;1;2;3m▀'.encode() in shown


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


def test_cp(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['cp', str(data), str(tmp_path / 'out')]) == 0
    assert '0 were there' in capsys.readouterr().out
    assert main(['cp', str(data), str(tmp_path / 'out'), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['copied'] == 0
    assert main(['verify', str(tmp_path / 'out')]) == 0
    (tmp_path / 'out' / 'index.json').write_text('{"version": 2, "shards": []}')
    assert main(['cp', str(data), str(tmp_path / 'out')]) == 1
    error = capsys.readouterr().err
    assert 'of another dataset already' in error
    assert error.count('\n') == 1
    assert main(['cp', str(data), str(tmp_path / 'out'), '--overwrite']) == 0


@pytest.mark.parametrize('command', [['inspect', 'URL'], ['verify', 'URL'], ['cp', 'URL', 'out']])
def test_store_options(command: list[str], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(data) if part == 'URL' else part for part in command]
    assert main([*command, '--store-option', 'profil=x']) != 0
    assert 'has no extra options (but connect_timeout' in capsys.readouterr().err
    assert main([*command, '--store-option', 'profil']) != 0
    assert 'KEY=VALUE' in capsys.readouterr().err


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


def test_merge(make_dataset: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(('b', 'a')):
        make_dataset(f'all/{name}', 30, first=30 * number)
    assert main(['merge', str(tmp_path / 'all')]) == 0
    assert 'with 60 samples' in capsys.readouterr().out
    assert main(['inspect', str(tmp_path / 'all'), '--json', '--samples', '1']) == 0
    assert json.loads(capsys.readouterr().out)['first_samples'][0]['id']['value'] == 30
    parts = [str(tmp_path / 'all' / name / 'index.json') for name in ('b', 'a')]
    assert main(['merge', str(tmp_path / 'all'), *parts, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['samples'] == 60
    assert main(['inspect', str(tmp_path / 'all'), '--json', '--samples', '1']) == 0
    assert json.loads(capsys.readouterr().out)['first_samples'][0]['id']['value'] == 0
    assert main(['verify', str(tmp_path / 'all'), '-j', '1']) == 0
    assert main(['merge', str(tmp_path / 'nothing')]) == 1


def test_reshard(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ['reshard', str(data), str(tmp_path / 'out')]
    assert main([*command, '--size-limit', '1kb', '--compression', 'zstd', '--columns', 'id']) == 0
    assert '100 samples with the columns id' in capsys.readouterr().out
    assert main(command) == 1
    assert 'not empty' in capsys.readouterr().err
    assert main([*command, '--overwrite', '--order', 'shuffled', '--hashes', 'none', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found['samples'], found['order'], found['columns']) == (100, 'shuffled', ['id', 'row'])
    assert main(['verify', str(tmp_path / 'out'), '-j', '1']) == 0


def test_a_preview_says_the_size_of_a_picture_once(capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip('PIL.Image')

    print_preview('Row 0', {'image': describe_decoded(image.new('RGB', (40, 20))), 'label': describe_decoded(3)})

    assert capsys.readouterr().out.splitlines()[:3] == ['Row 0', '  image: picture, 40 x 20 RGB', '  label: 3']
