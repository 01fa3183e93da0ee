"""One error in place of another, and notes on errors of other people's code, which stay what they are."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from types import TracebackType
from typing import ParamSpec

from headrace.errors.redaction import redact

Arguments = ParamSpec('Arguments')


def mapping_errors(
    function: Callable[Arguments, Generator[None]],
) -> Callable[Arguments, contextlib.AbstractContextManager[None]]:
    """Make a context manager of a generator that raises every error that it is given, or another one in its place.

    The frame of contextlib's own manager keeps the error. On Python 3.13 the error's traceback keeps that frame, too.
    Such a cycle keeps all objects of the frames, such as a dataset, until garbage is collected.
    """

    @functools.wraps(function)
    def begin(*args: Arguments.args, **kwargs: Arguments.kwargs) -> _ErrorMapping:
        return _ErrorMapping(function(*args, **kwargs))

    return begin


@mapping_errors
def panics_as(kind: type[Exception]) -> Generator[None]:
    """Raise `kind` in place of the panic of a library in Rust, a BaseException that `except Exception` lets through."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != 'pyo3_runtime':  # such as KeyboardInterrupt
            raise
        raise kind(f'A library panicked: {type(error).__name__}: {error}.') from error


class _ErrorMapping(contextlib.AbstractContextManager[None]):
    def __init__(self, generator: Generator[None]) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        next(self._generator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            next(self._generator, None)
            return
        try:
            self._generator.throw(error)
        except BaseException as raised:
            # A generator makes a RuntimeError of a StopIteration.
            is_same = raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)
            if not is_same:
                raise
            error.__traceback__ = traceback
        finally:
            del error


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
