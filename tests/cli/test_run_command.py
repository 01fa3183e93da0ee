"""``headrace run``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

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
