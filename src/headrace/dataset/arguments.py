"""Helpful errors for positional and unknown arguments, for those of another kind, and overrides without effect."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Concatenate, Final, ParamSpec, SupportsFloat, SupportsIndex, TypeVar

import numpy as np

from headrace.errors import ArgumentError, ConfigError

S = TypeVar('S')
P = ParamSpec('P')
R = TypeVar('R')

_given_names: ContextVar[frozenset[str]] = ContextVar('given_names')

_KINDS: Final = {
    'bool': 'True or False',
    'int': 'an integer',
    'float': 'a number',
    'str': 'a text',
    'int | str': "a number, or a text such as '64mb'",
}
"""Annotations that say all of a value's kind, and the kind in words."""


def by_name(init: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """An `__init__` with clear errors for arguments by position, of unknown names, and of the wrong kind."""
    parameters = inspect.signature(init).parameters
    names = list(parameters)[1:]
    kinds = {name: str(parameters[name].annotation).removesuffix(' | None') for name in names}

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
        for name, value in kwargs.items():
            check_kind(name, value, kinds[name])
        init(self, **kwargs)  # pyright: ignore[reportCallIssue] - none is given by position

    return checked


def knows_given_names(function: Callable[P, R]) -> Callable[P, R]:
    """A function that can first ask `given_names` which arguments the caller wrote, whatever their values."""
    parameters = inspect.signature(function).parameters
    names = [name for name, one in parameters.items() if name != 'self' and one.kind != one.VAR_KEYWORD]

    @functools.wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        if all(name in given for name in names):
            # A command line gives all arguments, those with defaults too.
            given = {name: value for name, value in given.items() if value != parameters[name].default}
        _given_names.set(frozenset(given))
        return function(*args, **kwargs)

    return asked


def given_names() -> frozenset[str]:
    """Names of the arguments that the caller of this function, made by `knows_given_names`, wrote."""
    return _given_names.get()


def check_kind(name: str, value: object, kind: str) -> None:
    """Check that an argument is of the kind of its annotation: an ArgumentError for text where a number belongs.

    `'false'` would count as True, and `'4'` would fail far from here. Numbers of NumPy and PyTorch are numbers; 0 and 1
    are truth values; paths are texts; None is of every kind.
    """
    if value is None or kind not in _KINDS:
        return
    if kind == 'bool':
        fits = isinstance(value, SupportsIndex | np.bool_) and value in (0, 1)
    elif kind == 'str':
        fits = isinstance(value, str | os.PathLike)
    elif kind == 'int | str':
        fits = isinstance(value, str | SupportsFloat)
    else:
        # A whole float passes for an integer where no stricter rule follows: sizes are often computed.
        fits = isinstance(value, SupportsFloat) and not isinstance(value, bool)
    if not fits:
        converts = isinstance(value, str) and kind in ('int', 'float')
        fix = f' Convert text first, such as with `{kind}(...)`.' if converts else ''
        raise ArgumentError(f'`{name}` must be {_KINDS[kind]}, but is {value!r:.200}.{fix}')


_STORE = 'Register a store for the scheme of the URLs: headrace.storage.register_store.'
_COMPRESSION = 'Register a compression: headrace.format.register_compression.'
_INDEX = 'Write an index.json to the remote, or to `local` before the dataset is made.'
_PLAN = 'The order is `dataset.plan(epoch=...)`: read it there, or pass `shuffle_algo` and `batching_method`.'
_PLACE = 'Give `remote`, `local` and `split`.'

_UNUSED = {
    'Stream': {
        '_decompress_shard_part': _COMPRESSION,
        '_download_file': _STORE,
        '_prepare_shard_part': _STORE,
        'folder': _PLACE,
        'get_shards': _INDEX,
        'is_local': _PLACE,
        'prepare_shard': _STORE,
        'url': _PLACE,
    },
    'StreamingDataset': {
        '_each_sample_id': _PLAN,
        '_get_work': _PLAN,
        '_resume': 'Override `load_state_dict`.',
        'prepare_shard': _STORE,
        'resample_streams': _PLAN,
    },
}
"""By class and method, a sentence that names the replacement."""


def refuse_unused_overrides(cls: type, own: type) -> None:
    """Refuse a subclass that overrides a method which is never called. `own`: `Stream` or `StreamingDataset`."""
    unused = _UNUSED[own.__name__]
    for base in cls.__mro__[: cls.__mro__.index(own)]:
        for name in sorted(vars(base).keys() & unused.keys()):
            raise ConfigError(
                f'{base.__module__}.{base.__qualname__} overrides `{name}`, which headrace never calls. {unused[name]}'
            )
