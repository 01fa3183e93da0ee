"""Helpful errors for positional and unknown arguments, for those of another kind, and overrides without effect."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import (
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from headrace.errors import ArgumentError, ConfigError
from headrace.options.constraints import AtLeast, MoreThan, all_field_texts, field_types, plain, unwrap

O = TypeVar('O')  # noqa: E741 - the options
C = TypeVar('C')
S = TypeVar('S')
P = ParamSpec('P')
R = TypeVar('R')

_given_names: ContextVar[frozenset[str]] = ContextVar('given_names')

_KINDS: Final[Mapping[Any, str]] = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a text',
    int | str: "a number, or a text such as '64mb'",
}
"""Types that say all of a value's kind, and the kind in words."""


def takes(
    options: Callable[P, O], *, error: type[ConfigError] = ConfigError
) -> Callable[[Callable[[S, O], None]], Callable[Concatenate[S, P], None]]:
    """Decorates an `__init__` that gets its arguments as one object of a dataclass.

    The arguments, their defaults and the signature are those of the dataclass. The arguments of the caller are by name,
    of known names, and as the annotations say; numbers of NumPy and PyTorch become Python's. Anything else is an
    ArgumentError, or an `error` if a value is out of its bounds or not one of the choices.
    """
    own: Any = options
    types = get_type_hints(own)
    given = inspect.signature(options).parameters.values()
    parameters = {each.name: each.replace(annotation=types[each.name]) for each in given}

    def decorate(init: Callable[[S, O], None]) -> Callable[Concatenate[S, P], None]:
        @functools.wraps(init)
        def checked(self: S, *args: Any, **kwargs: Any) -> None:
            _refuse_unknown(type(self).__name__, args, kwargs, list(parameters))
            hints = field_types(own)
            init(self, own(**{name: _checked(name, value, hints[name], error) for name, value in kwargs.items()}))

        this = inspect.Parameter('self', inspect.Parameter.POSITIONAL_OR_KEYWORD)
        vars(checked)['__signature__'] = inspect.Signature([this, *parameters.values()])
        return cast('Callable[Concatenate[S, P], None]', checked)

    return decorate


class _Documentation:
    """The `__doc__` of a class whose arguments are options. Their texts are read from the source when it is asked."""

    def __init__(self, text: str, options: type) -> None:
        self._text, self._options = inspect.cleandoc(text), options

    def __get__(self, instance: object, owner: type) -> str:
        try:
            texts = all_field_texts(self._options)
        except OSError:  # no source, as in a frozen program
            texts = dict[str, str]()
        arguments = ''.join(f'    {name}: {text}\n' for name, text in texts.items())
        before, raises, after = self._text.partition('Raises:\n')
        before = f'{before.rstrip()}\n' if 'Args:\n' in before else f'{before}Args:\n'
        return f'{before}{arguments}\n{raises}{after}'


def documented(options: type) -> Callable[[type[C]], type[C]]:
    """Decorates a class whose `__init__` takes these options: its documentation has their texts, after others."""

    def decorate(cls: type[C]) -> type[C]:
        cls.__doc__ = cast('str', _Documentation(cls.__doc__ or '', options))
        return cls

    return decorate


def _refuse_unknown(title: str, args: Sequence[Any], given: Iterable[str], names: Sequence[str]) -> None:
    if args:
        first = args[0]
        fix = 'Write each argument as `name=value`.'
        if isinstance(first, (str, bytes)) or hasattr(first, '__fspath__'):
            fix = 'Write `local=` before a folder of this machine, `remote=` before a URL or a shared folder.'
        raise ArgumentError(f'{title} takes its arguments by name, but got {first!r:.200} by position. {fix}')
    unknown = [name for name in given if name not in names]
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        fix = f'Did you mean `{near[0]}`?' if near else f'It takes {", ".join(names)}.'
        raise ArgumentError(f'{title} has no argument `{unknown[0]}`. {fix}')


def _checked(name: str, value: object, hint: object, error: type[ConfigError]) -> Any:
    """The value of an option, with Python's numbers, after its kind, its bounds and its choices are checked.

    None is of every kind, but none of the choices. Text forms and nested values are left to whoever reads them.
    """
    value = plain(value)
    if value is None and get_origin(hint) is not Literal:
        return None
    kind, constraint = unwrap(hint)
    check_kind(name, value, kind)
    if isinstance(constraint, AtLeast | MoreThan) and not constraint.holds(cast('Any', value)):
        raise error(f'`{name}` must be {str(constraint).removeprefix("of ")}, but is {value!r}.')
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if choices and value not in choices:
        of = ' or '.join(map(repr, choices)) if len(choices) == 2 else f'one of {list(choices)}'
        raise error(f'`{name}` must be {of}, but is {value!r}.')
    return bool(value) if kind is bool else value


def takes_plain_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function: numbers of NumPy and PyTorch among its arguments become Python's."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast('Callable[..., R]', function)(*args[:1], *map(plain, args[1:]), **plain(kwargs))

    return called


def knows_given_names(function: Callable[P, R]) -> Callable[P, R]:
    """A function that can first ask `given_names` which arguments the caller wrote, whatever their values."""
    parameters = inspect.signature(function).parameters
    names = [name for name, one in parameters.items() if name != 'self' and one.kind != one.VAR_KEYWORD]

    @functools.wraps(function)
    def noting(*args: P.args, **kwargs: P.kwargs) -> R:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        if all(name in given for name in names):
            # A command line gives all arguments, those with defaults too.
            given = {name: value for name, value in given.items() if value != parameters[name].default}
        _given_names.set(frozenset(given))
        return function(*args, **kwargs)

    return noting


def given_names() -> frozenset[str]:
    """Names of the arguments that the caller of this function, made by `knows_given_names`, wrote."""
    return _given_names.get()


def check_kind(name: str, value: object, kind: object) -> None:
    """Check that an argument is of the type of its annotation: an ArgumentError for text where a number belongs.

    `'false'` would count as True, and `'4'` would fail far from here. Numbers of NumPy and PyTorch are numbers; 0 and 1
    are truth values; paths are texts; None is of every kind.
    """
    words = _KINDS.get(kind) if isinstance(kind, Hashable) else None
    if value is None or words is None:
        return
    if kind is bool:
        fits = isinstance(value, SupportsIndex | np.bool_) and value in (0, 1)
    elif kind is str:
        fits = isinstance(value, str | os.PathLike)
    elif kind == int | str:
        fits = isinstance(value, str | SupportsFloat)
    else:
        # A whole float passes for an integer where no stricter rule follows: sizes are often computed.
        fits = isinstance(value, SupportsFloat) and not isinstance(value, bool)
    if not fits:
        converts = isinstance(value, str) and kind in (int, float)
        fix = f' Convert text first, such as with `{cast("type", kind).__name__}(...)`.' if converts else ''
        raise ArgumentError(f'`{name}` must be {words}, but is {value!r:.200}.{fix}')


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
