"""Encodings by name: headrace's and registered ones, and suggestions for unknown names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast, overload

import numpy as np

from headrace.errors import ConfigError, FormatError, HeadraceError
from headrace.format.encodings import (  # noqa: F401 - they register theirs
    images,  # pyright: ignore[reportUnusedImport]
    scalars,  # pyright: ignore[reportUnusedImport]
    texts,  # pyright: ignore[reportUnusedImport]
)
from headrace.format.encodings.arrays import DTYPES
from headrace.format.encodings.encoding import ENCODINGS, Buffer, Encoding, stored_bytes

_RUN_CODE: Final = frozenset({'cloudpickle', 'dill', 'joblib', 'marshal', 'pickle', 'torch'})
"""Modules whose functions run code that is in the data."""
_NAME: Final = re.compile(r'[A-Za-z][A-Za-z0-9_.\[\]-]{0,63}', re.ASCII)


@overload
def register_encoding(name: str, encoding: Encoding | type[Encoding]) -> None: ...


@overload
def register_encoding(
    name: str,
    *,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    size: int | None = None,
    kind: str | None = None,
    runs_code: bool = False,
) -> None: ...


def register_encoding(
    name: str,
    encoding: Encoding | type[Encoding] | None = None,
    *,
    encode: Callable[[Any], bytes] | None = None,
    decode: Callable[[bytes], Any] | None = None,
    size: int | None = None,
    kind: str | None = None,
    runs_code: bool = False,
) -> None:
    """Register an encoding of MDS columns: an `Encoding`, or two functions.

    Call it where your module is imported, and import that module in the script that makes the dataset. Workers import
    the script, so they know the encoding too, with any start method. Shards hold the name: keep it.

    Args:
        name: as columns give it, without parameters, such as 'point'.
        encoding: an `Encoding` or its class, for encodings with parameters, fixed-size arrays, or code that runs.
        encode: returns the bytes of a value; any error refuses the value.
        decode: returns the value of the bytes; any error marks the sample as damaged.
        size: bytes of every value; by default values differ in length.
        kind: streams of a mixture may share a column if their encodings have the same kind. None: the name.
        runs_code: whether bytes can make `decode` run code, as those of a pickle can. Datasets with such columns need
            `allow_unsafe_types`. Functions of pickle, marshal, dill, cloudpickle, joblib and torch always do.

    Raises:
        ConfigError: the name is taken or malformed, or neither an encoding nor two functions are given.
    """
    _check_name(name)
    if encoding is not None and encode is None and decode is None:
        instance = encoding() if isinstance(encoding, type) else encoding
    elif encoding is None and encode is not None and decode is not None:
        instance = FunctionEncoding(name, encode, decode, size, kind, runs_code)
    else:
        raise ConfigError(
            f'register_encoding({name!r}) takes either an encoding, or both `encode` and `decode`. Give one of these.'
        )
    taken = ENCODINGS.get(name)
    if taken is not None and _source(taken) != _source(instance):
        raise ConfigError(
            f'An encoding is registered once, but {name!r} is that of {_source(taken)} already, and is now given '
            f'{_source(instance)}. Choose another name, such as one with the name of your project.'
        )
    ENCODINGS[name] = instance
    get_mds_encoding.cache_clear()


def replace_encoding(name: str, encoding: Encoding) -> None:
    """Register an encoding under a name that another one may have: all shards are read and written by it then."""
    _check_name(name)
    ENCODINGS[name] = encoding
    get_mds_encoding.cache_clear()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f'The name of an encoding begins with a letter and has at most 64 letters, digits and "_.-[]", but got '
            f'{name[:80]!r}. A colon separates the name from its parameters.'
        )


def encoding_name(column: str, encoding: object) -> object:
    """The name of a column's encoding; an `Encoding` or its class is registered, another value returned as it is."""
    if isinstance(encoding, Encoding) or (isinstance(encoding, type) and issubclass(encoding, Encoding)):
        kind = encoding if isinstance(encoding, type) else type(encoding)
        given = getattr(encoding, 'name', None)
        if not isinstance(given, str):
            # Those of this package have names besides their classes.
            given = next((name for name, encoder in ENCODINGS.items() if type(encoder) is kind), kind.__name__)
        if type(ENCODINGS.get(given.partition(':')[0])) is not kind or ':' not in given:
            register_encoding(given, encoding)
        return given
    if callable(encoding) and not isinstance(encoding, type):
        shown = getattr(encoding, '__qualname__', type(encoding).__name__)
        raise ConfigError(
            f'Column {column!r} is given the function {shown}, which says how values are written, but not how they are '
            f'read: shards hold the name of an encoding with both. Give an `Encoding`, or register one with '
            f'register_encoding(name, encode=..., decode=...) and give its name.'
        )
    return encoding


def _source(encoding: Encoding) -> str:
    """The place of an encoding's definition. A module that runs again may register again."""
    if isinstance(encoding, FunctionEncoding):
        return encoding.source
    return f'{type(encoding).__module__}.{type(encoding).__qualname__}'


def _place(function: Callable[..., Any]) -> str:
    """The place of a function's definition. Lambdas of one module differ by their lines."""
    # Methods of built-in types, such as str.encode, have no module.
    place = f'{getattr(function, "__module__", "builtins")}.{getattr(function, "__qualname__", repr(function))}'
    code = getattr(function, '__code__', None)
    return f'{place}:{code.co_firstlineno}' if code is not None and '<lambda>' in place else place


class FunctionEncoding(Encoding):
    """An encoding of two functions; arguments as `register_encoding`'s."""

    def __init__(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        size: int | None,
        kind: str | None,
        runs_code: bool,
    ) -> None:
        self.size = size
        self.kind = kind or name
        self.source = _place(encode)
        self.trusted_name = not (runs_code or _place(decode).partition('.')[0].lstrip('_') in _RUN_CODE)
        self._name, self._encode, self._decode = name, encode, decode

    def encode(self, obj: Any) -> bytes:
        """The function's bytes; its errors mean that the value cannot be stored."""
        try:
            data = self._encode(obj)
        except (HeadraceError, ImportError, MemoryError, AttributeError, TypeError, ValueError, OverflowError):
            raise
        except Exception as error:
            raise ValueError(f'`encode` of encoding `{self._name}` failed: {type(error).__name__}: {error}.') from error
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - a function of the user's
            raise TypeError(
                f'`encode` of encoding `{self._name}` returns bytes, but returned a {type(data).__name__}. '
                f'Convert it with bytes().'
            )
        return data

    def decode(self, data: Buffer) -> Any:
        """The function's value; its errors mean that the value is damaged."""
        try:
            return self._decode(bytes(data))
        except (HeadraceError, ImportError, MemoryError):
            raise
        except Exception as error:
            raise FormatError(
                f'A value of encoding `{self._name}` ({len(data)} bytes) cannot be decoded: '
                f'{type(error).__name__}: {error}.'
            ) from error


def get_mds_encodings() -> set[str]:
    """The names of encodings, without parameters: 28 of headrace, and the registered ones."""
    return set(ENCODINGS)


@lru_cache(maxsize=4096)  # bounded: the names come from files
def get_mds_encoding(encoding: str) -> Encoding:
    """The encoding of this name; a ConfigError if there is none, or its parameters are wrong."""
    name, colon, parameters = encoding.partition(':')
    encoder = ENCODINGS.get(name)
    if encoder is not None and colon:
        encoder = encoder.with_parameters(parameters)
    if encoder is None:
        raise ConfigError(
            f'{encoding[:80]!r} is not an encoding of MDS columns. {suggestion(encoding, ENCODINGS)} '
            f'If it is your own, import the module that calls register_encoding.'
        )
    return encoder


def is_mds_encoding(encoding: str) -> bool:
    """Whether an encoding has this name, parameters included."""
    try:
        get_mds_encoding(encoding)
    except ConfigError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    return get_mds_encoding(encoding).trusted_name


def mds_encode(encoding: str, obj: Any) -> bytes:
    """The bytes stored for ``obj`` in a column of this encoding.

    Every encoding stores a ``bytes`` object unchanged, as an encoded value.

    Raises:
        ConfigError: no such encoding.
        AttributeError, TypeError, ValueError, OverflowError: see the encoding.
    """
    return stored_bytes(get_mds_encoding(encoding), obj, check=False)


def mds_decode(encoding: str, data: Buffer) -> Any:
    """The value stored as ``data`` in a column of this encoding.

    Raises:
        ConfigError: no such encoding.
        FormatError: ``data`` is not such a value.
    """
    return get_mds_encoding(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Bytes of every value of this encoding, or None when they differ in length."""
    return get_mds_encoding(encoding).size


def fixed_array_type(encoding: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Dtype (little-endian) and shape of a fixed-size value, () for a number; None if sizes differ."""
    return get_mds_encoding(encoding).array_type


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
    """Refuse a writer's columns unless they map names to encodings."""
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
    choices = sorted(names)
    head, colon, parameters = _usual_name(encoding).partition(':')
    near = [name for name in _BY_USUAL_NAME.get(head, ()) if name in choices]
    if head in choices:
        near = list(dict.fromkeys([head, *near]))
    elif not near:
        near = difflib.get_close_matches(head.lower(), choices, n=1)
    if isinstance(encoding, str) and colon and head == 'ndarray' and head in choices:
        return (
            f'`ndarray` takes a dtype and a shape, as in `ndarray:float32:3,224`, but got `{parameters:.60}`. '
            f'The dtypes are {", ".join(DTYPES)}.'
        )
    if isinstance(encoding, str) and colon and head in choices:
        return f'`{head}` takes no parameters: leave the part after the colon out.'
    choice = ' or '.join(repr(name) for name in near)
    if choice:
        choice = f'Did you mean {choice}? ' if isinstance(encoding, str) else f'Write {choice}. '
    array = ', and `ndarray:<dtype>:<d0>,<d1>...`' if 'ndarray' in choices else ''
    return f'{choice}The encodings are {", ".join(choices)}{array}.'


def _usual_name(encoding: object) -> str:
    if isinstance(encoding, str):
        return encoding
    if isinstance(encoding, np.dtype):
        return cast('np.dtype[np.generic]', encoding).name
    if isinstance(encoding, type):
        return encoding.__name__.rstrip('_')  # np.str_
    return str(encoding).rpartition('.')[2]  # torch.float32, typing.Any
