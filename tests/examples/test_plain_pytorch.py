"""The examples run as they are written, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / 'examples'


def lines_of(folder: Path, steps: int) -> list[tuple[str, ...]]:
    program = [sys.executable, str(EXAMPLES / 'plain_pytorch.py'), str(folder), str(steps)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return re.findall(r'epoch (\d+) sample (\d+) loss \S+ ids (.*)', done.stdout)


def test_plain_pytorch_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = lines_of(tmp_path / 'whole', 30)
    parts = lines_of(tmp_path / 'parts', 13) + lines_of(tmp_path / 'parts', 17)
    assert len(whole) == 30
    assert parts == whole
