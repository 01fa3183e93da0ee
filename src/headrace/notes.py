"""Notes on errors of other people's code, which stay what they are: class, message and arguments."""

from __future__ import annotations

import sys

from headrace.redaction import redact


def add_note(error: BaseException, text: str) -> None:
    """Have tracebacks of an error end with a note without secrets, in whichever process they are printed.

    Python 3.10 prints no notes (PEP 678), so there the note is also the first cause of the error.
    """
    text = redact(text)
    notes: list[str] = getattr(error, '__notes__', [])
    if text in notes:
        return
    if sys.version_info >= (3, 11):
        error.add_note(text)
        return
    vars(error)['__notes__'] = [*notes, text]
    first, seen = error, {id(error)}
    while (before := first.__cause__ or first.__context__) is not None and id(before) not in seen:
        first = before
        seen.add(id(first))
    first.__cause__ = _Note(text)


class _Note(Exception):  # noqa: N818 - never raised
    """Printed above the traceback of the error that it belongs to."""
