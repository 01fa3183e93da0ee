"""The pages that newcomers read first: their programs and commands run, and print what the pages say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / 'docs'
FILES = re.compile(r'^```(?:python|yaml)\n# ([\w.]+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r'^```console\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_MEASURED = re.compile(r'\b(stored|rows/s|ratio|about)\b')

NEEDS = {'images': 'lightning', 'llm': 'tokenizers', 'parquet': 'pyarrow'}


def unmeasured(line: str) -> str:
    """The line without numbers, if they are of times and of sizes that depend on versions."""
    return re.sub(r'\d[\d,.]*( [kM]?i?B)?', 'N', line) if _MEASURED.search(line) else line


@pytest.mark.once
@pytest.mark.parametrize('name', sorted(NEEDS))
def test_a_page_runs_as_written(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f'{NEEDS[name]} is not installed')
    page = (DOCS / f'start_{name}.md').read_text()
    for file, text in FILES.findall(page):
        (tmp_path / file).write_text(text)
    programs = {'python': [sys.executable], 'headrace': [sys.executable, '-m', 'headrace.cli']}
    shown: list[str] = []
    printed: list[str] = []
    for block in COMMANDS.findall(page):
        shown += block.splitlines()
        for line in block.splitlines():
            if line.startswith('$ '):
                program, *arguments = line[2:].split()
                command = [*programs[program], *arguments]
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
                assert done.returncode == 0, done.stderr
                printed += [line, *done.stdout.splitlines()]
    assert [unmeasured(line) for line in printed] == [unmeasured(line) for line in shown]
