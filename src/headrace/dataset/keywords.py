"""Helpful errors for positional and unknown arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.errors import ArgumentError

__all__ = ['by_name']

S = TypeVar('S')
P = ParamSpec('P')


def by_name(init: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """An `__init__` with clear errors for arguments by position, and for unknown names."""
    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: S, *args: Any, **kwargs: Any) -> None:
        if args:
            first = args[0]
            fix = 'Write each argument as `name=value`.'
            if isinstance(first, (str, bytes)) or hasattr(first, '__fspath__'):
                fix = 'Write `local=` before a folder of this machine, `remote=` before a URL or a shared folder.'
            raise ArgumentError(
                f'{type(self).__name__} takes its arguments by name, but got {first!r:.200} by position. {fix}'
            )
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            near = difflib.get_close_matches(unknown[0], names, n=1)
            fix = f'Did you mean `{near[0]}`?' if near else f'It takes {", ".join(names)}.'
            raise ArgumentError(f'{type(self).__name__} has no argument `{unknown[0]}`. {fix}')
        init(self, **kwargs)  # pyright: ignore[reportCallIssue] - none is given by position

    return checked
