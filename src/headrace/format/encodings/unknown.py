"""Messages about unknown encodings, with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import numpy as np

from headrace.errors import ConfigError
from headrace.format.encodings.arrays import DTYPES

__all__ = ['check_encodings', 'suggestion']

_BY_USUAL_NAME: Final[dict[str, tuple[str, ...]]] = {
    'array': ('ndarray',),
    'binary': ('bytes',),
    'bool': ('uint8', 'int'),
    'boolean': ('uint8', 'int'),
    'bytearray': ('bytes',),
    'date': ('str',),
    'datetime': ('str',),
    'Decimal': ('str_decimal',),
    'dict': ('json',),
    'double': ('float64', 'float'),
    'float': ('float64', 'float32', 'float'),
    'half': ('float16',),
    'Image': ('png', 'jpeg', 'pil'),
    'image': ('png', 'jpeg', 'pil'),
    'int': ('int', 'int32', 'int64', 'str_int'),
    'integer': ('int',),
    'jpg': ('jpeg',),
    'list': ('json', 'ndarray'),
    'long': ('int', 'int64'),
    'numpy': ('ndarray',),
    'object': ('json', 'pkl'),
    'pickle': ('pkl',),
    'string': ('str',),
    'Tensor': ('ndarray',),
    'tensor': ('ndarray',),
    'text': ('str',),
    'tuple': ('json', 'ndarray'),
    'utf8': ('str',),
}
"""Encodings by the names of Python's types and of other formats. A format suggests only those that it has."""


def check_encodings(columns: object, *, writer: str, is_known: Callable[[str], bool], names: Iterable[str]) -> None:
    """Refuse a writer's columns unless they map names to encodings.

    Args:
        columns: the writer's argument.
        writer: its name, for messages.
        is_known: whether an encoding exists, its parameters included.
        names: the encodings' names, without parameters.

    Raises:
        ConfigError: an encoding is unknown; the message names the column and suggests encodings.
    """
    if not isinstance(columns, Mapping):
        raise ConfigError(
            f"`columns` of {writer} must be a mapping from column to encoding, such as {{'text': 'str'}}, but is a "
            f'{type(columns).__name__}.'
        )
    for name, encoding in cast('Mapping[object, object]', columns).items():
        if not isinstance(name, str):
            raise ConfigError(f'The columns of {writer} must have texts as names, but one is {name!r:.100}.')
        if not isinstance(encoding, str):
            raise ConfigError(
                f'{writer} passed column `{name}` with unsupported encoding {encoding!r:.100}. An encoding is a text. '
                f'{suggestion(encoding, names)}'
            )
        if not is_known(encoding):
            raise ConfigError(
                f'{writer} passed column `{name}` with unsupported encoding `{encoding:.100}`. '
                f'{suggestion(encoding, names)}'
            )


def suggestion(encoding: object, names: Iterable[str]) -> str:
    """Suggestions for an unknown encoding, and the list of all names."""
    known = sorted(names)
    head, colon, parameters = _usual_name(encoding).partition(':')
    near = [name for name in _BY_USUAL_NAME.get(head, ()) if name in known]
    if head in known:
        near = list(dict.fromkeys([head, *near]))
    elif not near:
        near = difflib.get_close_matches(head.lower(), known, n=1)
    if isinstance(encoding, str) and colon and head == 'ndarray' and head in known:
        return (
            f'`ndarray` takes a dtype and a shape, as in `ndarray:float32:3,224`, but got `{parameters:.60}`. '
            f'The dtypes are {", ".join(DTYPES)}.'
        )
    if isinstance(encoding, str) and colon and head in known:
        return f'`{head}` takes no parameters: leave the part after the colon out.'
    choice = ' or '.join(repr(name) for name in near)
    if choice:
        choice = f'Did you mean {choice}? ' if isinstance(encoding, str) else f'Write {choice}. '
    array = ', and `ndarray:<dtype>:<d0>,<d1>...`' if 'ndarray' in known else ''
    return f'{choice}The encodings are {", ".join(known)}{array}.'


def _usual_name(encoding: object) -> str:
    """The name of a type or dtype; text is its own name."""
    if isinstance(encoding, str):
        return encoding
    if isinstance(encoding, np.dtype):
        return cast('np.dtype[np.generic]', encoding).name
    if isinstance(encoding, type):
        return encoding.__name__.rstrip('_')  # np.str_
    return str(encoding).rpartition('.')[2]  # torch.float32, typing.Any
