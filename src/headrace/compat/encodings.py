"""Encodings of MDS columns that are registered by assignment, as `_encodings['point'] = Point`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping
from typing import Any

import headrace.format
from headrace.errors import ConfigError
from headrace.format.encodings.encoding import ENCODINGS
from headrace.format.encodings.registry import FunctionEncoding, replace_encoding

__all__ = ['ENCODING_CLASSES', 'Encoding']


class Encoding(ABC):
    """The class that users' encodings derive from. Encodings of headrace count as its instances."""

    size: int | None = None
    """Bytes of every value; None: values differ in length."""

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of the bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise AttributeError(f'The value must be a {expected_type}, but is a {type(data)}.')  # noqa: TRY004


Encoding.register(headrace.format.Encoding)


class _Assigned(FunctionEncoding):
    """An assigned class as an encoding of headrace's."""

    def __init__(self, name: str, assigned: type[Any], instance: Any) -> None:
        super().__init__(name, instance.encode, instance.decode, getattr(instance, 'size', None), None, False)
        self._assigned = assigned

    def with_parameters(self, text: str) -> headrace.format.Encoding | None:
        """The encoding that the class makes of a name's parameters; None if it takes none."""
        make = getattr(self._assigned, 'from_str', None)
        return None if make is None else _Assigned(f'{self.kind}:{text}', self._assigned, make(text))


class _EncodingClasses(MutableMapping[str, type[Any]]):
    """Encodings' classes by name. An assignment registers one, or replaces headrace's own."""

    def __init__(self) -> None:
        self._assigned: dict[str, type[Any]] = {}

    def __getitem__(self, name: str) -> type[Any]:
        return self._assigned[name] if name in self._assigned else type(ENCODINGS[name])

    def __setitem__(self, name: str, encoding: type[Any]) -> None:
        """Register a class, for columns that are named `name` or `name:PARAMETERS`.

        Args:
            name: as `register_encoding`.
            encoding: a class with `encode` and `decode`; for names with parameters also with the class method
                `from_str(parameters)`.

        Raises:
            ConfigError: the name is malformed, or there is no such class.
        """
        if not (isinstance(encoding, type) and hasattr(encoding, 'encode') and hasattr(encoding, 'decode')):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f'_encodings[{name!r}] takes a class with `encode` and `decode`, but got {encoding!r}. '
                f'Assign the class, not an instance.'
            )
        replace_encoding(name, _Assigned(name, encoding, encoding()))
        self._assigned[name] = encoding

    def __delitem__(self, name: str) -> None:
        raise ConfigError(f'Encodings stay registered, but {name!r} was deleted. Assign another class to the name.')

    def __iter__(self) -> Iterator[str]:
        return iter(ENCODINGS)

    def __len__(self) -> int:
        return len(ENCODINGS)


ENCODING_CLASSES = _EncodingClasses()
"""`streaming.base.format.mds.encodings._encodings`."""
