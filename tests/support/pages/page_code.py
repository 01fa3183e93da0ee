"""The code of a page of the docs, run as a reader pastes it: block after block, in one folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages.transcripts import with_transcripts

DOCS = Path(__file__).parents[3] / 'docs'
_BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'# [\w-]+\.\w+\n')


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a language, in their order."""
    return [code for found, code in _BLOCK.findall(page) if found == language]


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a page in an empty folder, and return the names that its code has defined.

    First come the files whose names begin their blocks, and the commands of ``console`` blocks. Other Python blocks
    follow, in one namespace. The test stays in the folder.
    """
    assert with_transcripts(page, folder) == page
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for file in folder.glob('*.py'):
        sys.modules.pop(file.stem, None)  # another page's module of this name
    names: dict[str, Any] = {'__name__': '__main__'}
    for number, code in enumerate(blocks(page, 'python'), 1):
        if not _FILE.match(code):
            exec(compile(code, f'Python block {number}', 'exec'), names)
    return names
