"""Constraints on the values of options, in `Annotated[...]`, and what annotations say.

An option is a field of a frozen dataclass, with its text beneath. Its annotation says its type in Python, its bounds
and its choices. Signatures, the reader of YAML, the reference and the checks are made from these fields.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headrace.errors import ConfigError
from headrace.selection import Mistake

T = TypeVar('T')


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Constraint on a number: the smallest value allowed, inclusive."""

    bound: int

    def __str__(self) -> str:
        return f'of at least {self.bound}'

    def holds(self, value: float) -> bool:
        return not value < self.bound  # nan is left to rules of finite numbers


@dataclass(frozen=True, slots=True)
class MoreThan:
    """Constraint on a number: the value that it must exceed, exclusive."""

    bound: int

    def __str__(self) -> str:
        return f'greater than {self.bound}'

    def holds(self, value: float) -> bool:
        return value > self.bound


@dataclass(frozen=True, slots=True)
class Count:
    """Constraint on an integer that may be written with a unit of 1000: ``100k``, ``64M``, ``1.5b``, ``1t``."""

    least: int = 1

    def __str__(self) -> str:
        return f"of at least {self.least}, or text like '100k', '64m', '1.5b'"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Constraint on a size in bytes that may be written with a unit of 1024: ``100kb``, ``64mb``, ``1.5gb``."""

    least: int = 1

    def __str__(self) -> str:
        return f"of at least {self.least}, or text like '100kb', '64mb', '10gb'"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Constraint on a text: the names allowed, where another package owns their list; ``Literal`` elsewhere."""

    names: tuple[str, ...] | Callable[[], tuple[str, ...]]  # or a function that gives them, where programs add some


@dataclass(frozen=True, slots=True)
class Named:
    """Constraint on a tuple of named dataclasses: a mapping from names, or a list of items with a ``name``."""

    what: str  # noun for one item, in messages
    or_single: bool = False  # also accept one item in place of the mapping, named by its key; a list is refused then


@dataclass(frozen=True, slots=True)
class Parsed:
    """Constraint on a value whose form another package owns."""

    read: Callable[[object, list[Mistake]], Any]  # makes the value; returns None after adding its mistakes
    what: str  # noun for the value, in the documentation


def parsed(make: Callable[[Any], Any], what: str, rule: str) -> Parsed:
    """The constraint on a value that `make` makes, or refuses by a ConfigError; `rule` is what YAML's reader says."""

    def read(value: object, mistakes: list[Mistake]) -> Any:
        try:
            return make(value)
        except ConfigError:
            mistakes.append(Mistake((), value, rule))
            return None

    return Parsed(read, what)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def field_texts(cls: type) -> dict[str, str]:
    """The text beneath each field that `cls` itself defines."""
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = ' '.join(str(below.value.value).split())
    return texts


def all_field_texts(cls: type) -> dict[str, str]:
    """The text beneath each field, inherited ones too, in the order of the fields."""
    texts: dict[str, str] = {}
    for each in cls.__mro__:
        if dataclasses.is_dataclass(each):
            texts = {**field_texts(each), **texts}
    return {field.name: texts[field.name] for field in dataclasses.fields(cast('Any', cls)) if field.name in texts}


def choices_of(hint: Any, constraint: Any) -> tuple[str, ...]:
    """The texts that a value may be, or () if it is not bound to a list."""
    if isinstance(constraint, OneOf):
        return constraint.names if isinstance(constraint.names, tuple) else constraint.names()
    return get_args(hint) if get_origin(hint) is Literal else ()


def unwrap(hint: Any) -> tuple[Any, Any]:
    """An annotation without ``| None`` and ``Annotated``, and the constraint of the latter or None."""
    constraint = None
    while True:
        if get_origin(hint) is Annotated:
            hint, constraint = get_args(hint)[:2]
        elif get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
            hint = Union[tuple(arg for arg in get_args(hint) if arg is not type(None))]  # noqa: UP007 - a tuple
        else:
            return hint, constraint


def plain(value: Any) -> Any:
    """The value with scalars of NumPy and PyTorch made plain numbers, also those inside lists and mappings."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(plain, value))
    if kind is dict:
        return {key: plain(item) for key, item in value.items()}
    is_scalar = getattr(value, 'ndim', None) == 0 and hasattr(value, 'item')
    return value.item() if is_scalar else value
