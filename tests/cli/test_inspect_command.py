"""``headrace inspect``: what it prints, and the pictures that it shows and saves."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import MDSWriter
from headrace.cli import main


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
