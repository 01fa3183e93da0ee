"""Plain text of wikitext, by mwparserfromhell."""

from __future__ import annotations

import contextlib
import re
from types import ModuleType
from typing import Final

from headrace.errors import FormatError, MissingDependencyError

__all__ = ['plain_text', 'require_parser']

_NOT_TEXT: Final = frozenset({'file', 'image', 'category', 'media'})
"""Namespaces whose links are no words of the sentence."""
_TAGS: Final = frozenset({'table', 'ref', 'gallery', 'math', 'timeline', 'score'})
_SWITCHES: Final = re.compile(r'__[A-Z]+__')
_SPACES: Final = re.compile(r'[ \t\xa0]+')
_LINES: Final = re.compile(r'\n{3,}')


def require_parser() -> ModuleType:
    """The module mwparserfromhell.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        raise MissingDependencyError(
            "The markup of Wikipedia needs mwparserfromhell, which is not installed: pip install 'headrace[wiki]'"
        ) from error
    return mwparserfromhell


def plain_text(markup: str) -> str:
    """The words of an article: without templates, tables, files, categories, references and formulas.

    Titles of sections stay, as lines. Links become their words.

    Raises:
        FormatError: the parser fails.
    """
    parser = require_parser()
    try:
        code = parser.parse(markup, skip_style_tags=True)
        for link in code.filter_wikilinks():
            if str(link.title).partition(':')[0].strip().lower() in _NOT_TEXT and ':' in link.title:
                with contextlib.suppress(ValueError):  # removed with an outer node already
                    code.remove(link)
        for tag in code.filter_tags(matches=lambda node: str(node.tag).strip().lower() in _TAGS):
            with contextlib.suppress(ValueError):
                code.remove(tag)
        text = code.strip_code(normalize=True, collapse=True)
    except (parser.parser.ParserError, RecursionError) as error:
        raise FormatError(f'Wikitext cannot be parsed: {type(error).__name__}: {error}.') from None
    text = _SPACES.sub(' ', _SWITCHES.sub('', text).replace("'''", '').replace("''", ''))
    lines = (line.strip() for line in text.split('\n'))
    return _LINES.sub('\n\n', '\n'.join(lines)).strip()
