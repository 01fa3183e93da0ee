"""docs/troubleshooting.md quotes messages as the code has them."""

from __future__ import annotations

import re

import pytest

from tests.support.suite.optional_modules import REPOSITORY, SOURCES

PAGE = (REPOSITORY / 'docs' / 'troubleshooting.md').read_text()
QUOTES = [quote for head in re.findall(r'^\*\*(.*?)\*\*', PAGE, re.MULTILINE) for quote in re.findall('`(.*?)`', head)]
FOREIGN = ('DataLoader worker (pid', 'No such file or directory', 'load_path')
"""Words of PyTorch, of the system, and of a trainer."""

# Texts that are written in several parts are joined; what a message inserts is cut out.
TEXTS = re.sub(r"""['"]\s*\n\s*f?['"]""", '', '\n'.join(path.read_text() for path in SOURCES.rglob('*.py')))
TEXTS = re.sub(r'\{[^{}]*\}', '...', TEXTS)


@pytest.mark.parametrize('quote', QUOTES)
def test_a_quote_is_of_a_message(quote: str) -> None:
    if any(foreign in quote for foreign in FOREIGN):
        return
    parts = [part.strip() for part in quote.split('...') if len(part.strip()) > 3]
    assert parts
    assert all(part in TEXTS for part in parts), [part for part in parts if part not in TEXTS]
