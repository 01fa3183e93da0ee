"""The code of docs/lightning.md runs as it is pasted."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest

from tests.support.pages.page_code import DOCS, blocks, run_page

PAGE = (DOCS / 'lightning.md').read_text()


@pytest.mark.once
def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page(PAGE, tmp_path, monkeypatch)

    assert names['trainer'].global_step == 3 * 16  # resumed after the second epoch, at 1,000 samples in batches of 64
    assert names['loader'].epoch == 2
    assert Path('fabric.ckpt').exists()
    # The last command resumes; test_lightning_cli.py has the arguments of the others.
    commands = blocks(PAGE, 'bash')[1].replace('\\\n', '').splitlines()
    _, *arguments = shlex.split(commands[-1])
    monkeypatch.setattr('sys.argv', arguments)
    runpy.run_path(arguments[0], run_name='__main__')
