"""How workers end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.once
def test_spawned_workers_end_without_a_word(make_dataset):
    folder = make_dataset('data', 40)
    program = Path(__file__).with_name('busy_workers.py')
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ['10'] * 3), done.stderr
    assert 'terminate' not in done.stderr
