"""The transcripts of a page of the docs: commands that run, with what they print.

``PYTHONPATH=src python tests/transcripts.py docs/inspect.md`` writes them anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.cli import main

_BLOCK = re.compile(r'^```(text|console)\n(\$ .*?)^```$', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'^```(?:python|yaml)\n# (\w+\.\w+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def with_transcripts(page: str, folder: Path) -> str:
    """The page with what its commands print now.

    Args:
        page: its text. The first lines of its ``python`` and ``yaml`` blocks name the files that the commands use.
        folder: an empty folder, in which the commands run, one after the other.
    """
    for name, text in _FILE.findall(page):
        (folder / name).write_text(text)
    before, environ = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    try:
        return _BLOCK.sub(lambda block: f'```{block[1]}\n{_run_all(block[2])}```', page)
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environ)


def _run_all(block: str) -> str:
    lines: list[str] = []
    for line in block.splitlines():
        if line.startswith('$ '):
            lines += [line, *_run(line[2:]).splitlines()]
    return '\n'.join(lines) + '\n'


def _run(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program not in ('headrace', 'python'):
        return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    printed = io.StringIO()
    # In this process: each of its own would import torch.
    with contextlib.redirect_stdout(printed):
        if program == 'python':
            runpy.run_path(arguments[0], run_name='__main__')
        else:
            with contextlib.redirect_stderr(printed):
                main(arguments)
    return printed.getvalue()


if __name__ == '__main__':
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        path.write_text(with_transcripts(path.read_text(), Path(temporary)))
