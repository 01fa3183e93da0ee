"""The programs of docs/bridges.md run as they are written, and print what stands there."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOC = (Path(__file__).parents[2] / 'docs' / 'bridges.md').read_text()


@pytest.mark.once
@pytest.mark.lightning
def test_programs_print_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ('lightning', 'torchvision'):
        pytest.importorskip(package)
    datasets = pytest.importorskip('datasets')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', str(tmp_path / 'hf'))
    programs = re.findall(r'```python\n(.*?)```\n\n```text\n(.*?)```', DOC, re.DOTALL)
    assert len(programs) == DOC.count('```python') == 6
    for program, output in programs:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(program, 'docs/bridges.md', 'exec'), {'__name__': '__main__'})
        assert shown.getvalue() == output
