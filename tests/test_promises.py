"""docs/appendix/promises.md names the tests of each promise: they exist, and no promise is without one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / 'docs' / 'appendix' / 'promises.md').read_text()
ROWS = [row for row in re.findall(r'^\| (.+?) \| (.*) \|$', PAGE, re.MULTILINE) if row[0] not in {'promise', '---'}]


def all_tests() -> set[str]:
    """The names of all tests, also of contracts that tests inherit."""
    folders = (REPOSITORY / 'tests', REPOSITORY / 'src' / 'headrace' / 'testing')
    texts = (path.read_text() for folder in folders for path in folder.rglob('*.py'))
    return {name for text in texts for name in re.findall(r'^ *def (test_\w+)\(', text, re.MULTILINE)}


def test_every_test_on_the_page_exists() -> None:
    named = set(re.findall(r'`(test_\w+)`', PAGE))
    missing = sorted(named - all_tests())
    assert not missing, f'Name other tests of these promises in docs/appendix/promises.md: {missing}'


@pytest.mark.parametrize(('promise', 'tests'), ROWS, ids=[promise for promise, _ in ROWS])
def test_each_promise_has_a_test(promise: str, tests: str) -> None:
    assert re.fullmatch(r'`test_\w+`(, `test_\w+`)*', tests), promise


def test_the_promises_of_the_architecture_come_first() -> None:
    architecture = (REPOSITORY / 'docs' / 'architecture.md').read_text()
    promised = re.findall(r'^\d\. \*\*(.+?)\*\*', architecture.partition('## The flow')[0], re.MULTILINE)
    sections = re.findall(r'^## (.+)$', PAGE, re.MULTILINE)
    assert len(promised) == 7
    assert [title for title in sections[:7] if not any(text.startswith(title) for text in promised)] == []
