"""The examples of docs/formats.md that need no store run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / 'docs' / 'formats.md').read_text()
EXAMPLES = re.findall(r'^```python\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize('example', [text for text in EXAMPLES if 'print(' in text])
def test_an_example_prints_what_it_says(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, 'formats.md', 'exec'), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r'^print\(.*\)  # (.*)$', example, flags=re.MULTILINE)
