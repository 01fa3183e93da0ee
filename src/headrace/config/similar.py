"""Names that are similar to one that does not exist."""

from __future__ import annotations

import difflib
from typing import Final

__all__ = ['LONGEST_NAME', 'closest', 'did_you_mean']

LONGEST_NAME: Final = 80
"""Characters of a name that others are compared with; comparing takes quadratic time."""


def closest(text: str, names: tuple[str, ...]) -> list[str]:
    """The names most similar to `text`: one, or those that tie for it."""
    lowered = [name.lower() for name in names]
    text = text[:LONGEST_NAME].lower()
    best = difflib.get_close_matches(text, lowered, n=max(len(names), 1), cutoff=0.6)
    score = difflib.SequenceMatcher(None, best[0], text).ratio() if best else 1.0
    # Names that tie with the best one are as likely.
    ties = {other for other in best if difflib.SequenceMatcher(None, other, text).ratio() == score}
    return [name for name in names if name.lower() in ties]


def did_you_mean(suggestions: list[str]) -> str:
    """The question for a message; empty without suggestions."""
    quoted = ' or '.join(f'"{name}"' for name in suggestions)
    return f'; did you mean {quoted}?' if quoted else ''
