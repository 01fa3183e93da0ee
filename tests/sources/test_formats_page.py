"""The example of docs/formats.md that needs no store runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / 'docs' / 'formats.md').read_text()
EXAMPLES = re.findall(r'^```python\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = [text for text in EXAMPLES if 'print(' in text]
    exec(compile(example, 'formats.md', 'exec'), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r'^print\(.*\)  # (.*)$', example, flags=re.MULTILINE)
