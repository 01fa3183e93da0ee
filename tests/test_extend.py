"""The code of docs/extend.md runs as it is written, with spawned workers and with the contracts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / 'docs' / 'extend.md').read_text()


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page shows; each block says its file, and blocks of one file follow one another."""
    path, files = tmp_path_factory.mktemp('extend'), defaultdict(str)
    for name, code in re.findall(r'^```python\n# (\w+\.py)\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL):
        files[name] += code
    assert sorted(files) == ['own_parts.py', 'test_own_parts.py', 'train.py']
    for name, code in files.items():
        (path / name).write_text(code)
    return path


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_spawned_workers_read_what_was_registered(folder: Path) -> None:
    lines = run(folder, 'train.py').splitlines()
    batches = [ast.literal_eval(line.partition(' torch')[0]) for line in lines]
    assert sorted(number for batch in batches for number in batch) == list(range(64))
    assert {line.partition(' torch')[2] for line in lines} == {'.Size([16, 4])'}


def test_the_parts_keep_the_contracts(folder: Path) -> None:
    assert ' passed' in run(folder, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_own_parts.py')
