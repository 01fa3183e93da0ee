"""Notes on errors keep no secrets."""

from __future__ import annotations

import traceback

from headrace.errors.mapping import add_note
from tests.support.suite.planted import (
    USER,
    found_in_error,
)


def test_notes() -> None:
    error = ValueError('x')
    add_note(error, f'at http://{USER}@host')
    assert 'http://reader:***@host' in ''.join(traceback.format_exception(error))
    assert not found_in_error(error)
