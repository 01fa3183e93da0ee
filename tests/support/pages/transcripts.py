"""The transcripts of a page of the docs: commands that run, with what they print.

``python -m tests.support.pages.transcripts docs/inspect.md`` writes them anew; `make transcripts` writes all.
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
from unittest.mock import patch

from headrace.cli import main

_BLOCK = re.compile(r'^```(text|console)\n(\$ .*?)^```$', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'^```(?:python|yaml)\n# (\w+\.\w+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_MEASURED = ('$ tail ', *(f'$ headrace {name} ' for name in ('doctor', 'simulate', 'tune', 'bench', 'watch')))
"""Commands whose numbers depend on the machine, or on a model of one that becomes more exact; the end of a log, too."""
_NUMBER = re.compile(r'\d[\d,.]*(e[+-]\d+,?)?( ?(bytes|[kKMGT]i?B|µs|ms|s|h)\b)?(/s\b)?')
_OF_THE_MACHINE = re.compile(r'(ok|note|PROBLEM) +(?!web:|code:|nodes:)|The .* (is|are) the limit')
"""Lines of `doctor` but those on the data of docs/appendix/transcripts.md, and the sentence of `bench`."""
_FOLDER = '/home/ada/corpus'
"""Stands for the folder in which commands run; as long as a temporary one, so that tables stay straight."""


def with_transcripts(page: str, folder: Path, *, without: str = '') -> str:
    """The page with what its commands print now.

    Args:
        page: its text. The first lines of its ``python`` and ``yaml`` blocks name the files that the commands use.
        folder: an empty folder, in which the commands run, one after the other.
        without: a command whose blocks stay as they are, such as ``headrace demo``; '': all run.
    """
    for name, text in _FILE.findall(page):
        (folder / name).write_text(text)
    before, environ = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    try:
        stays = f'$ {without}' if without else '\0'
        return _BLOCK.sub(
            lambda block: block[0] if stays in block[2] else f'```{block[1]}\n{_run_all(block[2])}```', page
        ).replace(str(folder), _FOLDER)
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environ)


def comparable(page: str) -> list[str]:
    """The lines of a page without what depends on the machine; docs/appendix/transcripts.md says what that is."""
    lines: list[str] = []
    masks = is_left_out = False
    command = ''
    for line in page.splitlines():
        if line.startswith(('$ ', '```')):
            command, masks = line, line.startswith(_MEASURED)
        elif masks or re.search(r'\b(rows|tokens)/s| UTC\b', line):
            line = without_numbers(line.replace('*', ' '))
            if command.startswith('$ headrace tune ') and lines[-1].startswith('setting '):
                continue  # the head of its table is enough
            # A fix belongs to the line before it; a table may have more rows of a kind.
            is_left_out = bool(_OF_THE_MACHINE.match(line)) or (is_left_out and line.startswith('->'))
            if is_left_out or lines[-1:] == [line]:
                continue
        lines.append(' '.join(line.split()))
    return lines


def without_numbers(line: str) -> str:
    """The line with N for each number and its unit, and single spaces."""
    return ' '.join(_NUMBER.sub('N', line).split())


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
    if arguments[:1] == ['run']:  # changes the modules of its process
        own = [sys.executable, '-m', 'headrace.cli', *arguments]
        return subprocess.run(own, check=True, capture_output=True, text=True).stdout
    file = Path(arguments.pop()) if arguments[-2:-1] == ['>'] else None
    if file is not None:
        arguments.pop()
    printed = io.StringIO()
    # In this process: each of its own would import torch.
    with contextlib.redirect_stdout(printed), patch('socket.gethostname', return_value='node'):
        if program == 'python':
            with patch.object(sys, 'argv', arguments), patch.object(sys, 'path', [str(Path.cwd()), *sys.path]):
                runpy.run_path(arguments[0], run_name='__main__')
        else:
            with contextlib.redirect_stderr(printed):
                main(arguments)
    if file is None:
        return printed.getvalue()
    file.write_text(printed.getvalue())
    return ''


if __name__ == '__main__':
    for path in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as temporary:
            path.write_text(with_transcripts(path.read_text(), Path(temporary), without='headrace demo'))
