"""Constraints that a schema sets on its keys: bounds, forms and names.

A constraint is written as ``Annotated[type, constraint]``. `validate` checks values by it; `reference` documents it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from headrace.order.skip import read_range
from headrace.selection import Mistake

__all__ = ['AtLeast', 'Bytes', 'Count', 'MoreThan', 'Named', 'OneOf', 'Parsed', 'read_skip']


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Constraint on a number: the smallest value allowed, inclusive."""

    bound: int

    def __str__(self) -> str:
        return f'of at least {self.bound}'


@dataclass(frozen=True, slots=True)
class MoreThan:
    """Constraint on a number: the value that it must exceed, exclusive."""

    bound: int

    def __str__(self) -> str:
        return f'greater than {self.bound}'


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

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """Constraint on a tuple of named dataclasses: a mapping from names, or a list of items with a ``name``."""

    what: str
    """Noun for one item, in messages."""
    or_single: bool = False
    """Also accept one item in place of the mapping, named by its key; a list is refused then."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Constraint on a value whose form another package owns."""

    read: Callable[[object, list[Mistake]], Any]
    """Makes the value; returns None after adding its mistakes."""
    what: str
    """Noun for the value, in the documentation."""


def read_skip(value: object, mistakes: list[Mistake]) -> tuple[tuple[int | str, int | str], ...]:
    """Read ranges of a run's sequence, for `Parsed`; add their mistakes to `mistakes`."""
    if not isinstance(value, list):
        mistakes.append(Mistake((), value, 'must be a list of ranges [begin, end]'))
        return ()
    items = cast('list[Any]', value)
    found = [read_range(item) for item in items]
    wrong = [(i, rule) for i, rule in enumerate(found) if isinstance(rule, str)]
    mistakes += [Mistake((i,), items[i], rule) for i, rule in wrong]
    return () if wrong else tuple((begin, end) for begin, end in items)
