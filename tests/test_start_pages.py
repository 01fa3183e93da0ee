"""The pages that newcomers read first: their programs and commands run, and print what the pages say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.pages.transcripts import with_transcripts

DOCS = Path(__file__).parents[1] / 'docs'
_MEASURED = re.compile(r'\b(stored|rows/s|ratio|about)\b')

NEEDS = {
    'images': 'lightning',
    'llm': 'tokenizers',
    'mixup': 'torchvision',
    'nightly': 'headrace',
    'parquet': 'pyarrow',
    'speech': 'soundfile',
}


def unmeasured(line: str) -> str:
    """The line without numbers, if they are of times and of sizes that depend on versions."""
    return re.sub(r'\d[\d,.]*( (bytes|[kMG]?i?B)\b)?', 'N', line) if _MEASURED.search(line) else line


@pytest.mark.once
@pytest.mark.parametrize('name', sorted(NEEDS))
def test_a_page_runs_as_written(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f'{NEEDS[name]} is not installed')
    page = (DOCS / f'start_{name}.md').read_text()
    assert page.count('```console\n$ ') > 1
    assert [*map(unmeasured, with_transcripts(page, tmp_path).splitlines())] == [*map(unmeasured, page.splitlines())]
