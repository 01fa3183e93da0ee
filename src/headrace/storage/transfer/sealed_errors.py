"""Keeps secrets out of tracebacks: the errors of stores are chained to those of SDKs, whose texts hold whole URLs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headrace.errors import HeadraceError
from headrace.errors.redaction import redact

T = TypeVar('T')


class SealedError(Exception):
    """Stands in a traceback for an exception whose text holds a secret: its class, and its text without that."""


def seal(error: BaseException) -> None:
    """Replace the exceptions that led to `error` and whose texts hold secrets; the others stay as they are."""
    stand_ins: dict[int, tuple[BaseException, BaseException]] = {}
    todo, seen = [error], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        is_suppressed = each.__suppress_context__
        if each.__cause__ is not None:
            each.__cause__ = _without_secrets(each.__cause__, stand_ins)
            todo.append(each.__cause__)
        if each.__context__ is not None:
            each.__context__ = _without_secrets(each.__context__, stand_ins)
            todo.append(each.__context__)
        each.__suppress_context__ = is_suppressed


def sealed(store: type[T]) -> type[T]:
    """Decorates the class of a store: the errors that its methods raise are sealed."""
    for name in ('get', 'put', 'head', 'list', 'delete'):
        method: Callable[..., Any] = getattr(store, name)
        setattr(store, name, _sealed_call(method))
    return store


def _sealed_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except HeadraceError as error:
            seal(error)
            raise
        return _sealed_iteration(result) if isinstance(result, Iterator) else result

    return call


def _sealed_iteration(items: Iterator[T]) -> Iterator[T]:
    try:
        yield from items
    except HeadraceError as error:
        seal(error)
        raise


def _without_secrets(error: BaseException, stand_ins: dict[int, tuple[BaseException, BaseException]]) -> BaseException:
    """The exception or its stand-in; the dict remembers both, so that each has one."""
    if isinstance(error, HeadraceError):
        return error
    if id(error) not in stand_ins:
        stand_in = error
        texts = [_text(error), *getattr(error, '__notes__', ()), repr(error.args)]
        if any(redact(text) != text for text in texts):
            name = f'{type(error).__module__}.{type(error).__qualname__}'
            stand_in = SealedError(f'{name}: {redact(texts[0])}').with_traceback(error.__traceback__)
            stand_in.__cause__, stand_in.__context__ = error.__cause__, error.__context__
            stand_in.__suppress_context__ = error.__suppress_context__
        stand_ins[id(error)] = error, stand_in
    return stand_ins[id(error)][1]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ''
