"""docs/security.md is one page, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / 'docs' / 'security.md').read_text()


def test_the_page_names_tests_that_exist() -> None:
    folders = (REPOSITORY / 'tests', REPOSITORY / 'src' / 'headrace' / 'testing')
    texts = [path.read_text() for folder in folders for path in folder.rglob('*.py')]
    named = set(re.findall(r'`(test_\w+)`', PAGE))
    assert len(named) > 20
    assert {name for name in named if not any(f'def {name}(' in text for text in texts)} == set()


def test_it_is_one_page_that_reporters_find() -> None:
    assert len(PAGE.split()) <= 700
    assert '(docs/security.md)' in (REPOSITORY / 'SECURITY.md').read_text()
