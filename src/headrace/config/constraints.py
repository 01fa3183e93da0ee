"""What a schema says of its keys beside their types: bounds, forms and names, and rules between them.

A mark stands in ``Annotated[type, mark]``; `validate` reads values by it, and `reference` tells of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from headrace.order.skip import read_range
from headrace.selection import Mistake

__all__ = ['AtLeast', 'BrokenRule', 'Bytes', 'Count', 'MoreThan', 'Named', 'OneOf', 'Parsed', 'read_skip']


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Mark of a number: the smallest value allowed, inclusive."""

    bound: int

    def __str__(self) -> str:
        return f'of at least {self.bound}'


@dataclass(frozen=True, slots=True)
class MoreThan:
    """Mark of a number: the value that it must exceed, exclusive."""

    bound: int

    def __str__(self) -> str:
        return f'greater than {self.bound}'


@dataclass(frozen=True, slots=True)
class Count:
    """Mark of an integer that may be written with a unit of 1000: ``100k``, ``64M``, ``1.5b``, ``1t``."""

    least: int = 1

    def __str__(self) -> str:
        return f"of at least {self.least}, or text like '100k', '64m', '1.5b'"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Mark of a size in bytes that may be written with a unit of 1024: ``100kb``, ``64mb``, ``1.5gb``."""

    least: int = 1

    def __str__(self) -> str:
        return f"of at least {self.least}, or text like '100kb', '64mb', '10gb'"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Mark of a text: the names allowed, where another package owns their list; ``Literal`` elsewhere."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """Mark of a tuple of dataclasses with a ``name``: a mapping from names, or a list of items that say their name."""

    what: str
    """What one item is, for messages."""
    or_single: bool = False
    """Also accept one item in the place of the mapping, named by the key it stands at; then a list is refused."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Mark of a value whose form another package owns."""

    read: Callable[[object, list[Mistake]], Any]
    """Makes the value; returns None after noting what is wrong."""
    what: str
    """What the value is, for the documentation."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule between keys of one dataclass, broken."""

    keys: tuple[str, ...]
    """The keys of the dataclass that the rule speaks of; the message points to the first that is given."""
    rule: str
    inner: tuple[str, ...] = ()
    """The keys of dataclasses within it that the rule depends on."""


def read_skip(value: object, mistakes: list[Mistake]) -> tuple[tuple[int | str, int | str], ...]:
    """Read ranges of a run's sequence, for `Parsed`; what is wrong with them is added to mistakes."""
    if not isinstance(value, list):
        mistakes.append(Mistake((), value, 'must be a list of ranges [begin, end]'))
        return ()
    items = cast('list[Any]', value)
    found = [read_range(item) for item in items]
    wrong = [(i, rule) for i, rule in enumerate(found) if isinstance(rule, str)]
    mistakes += [Mistake((i,), items[i], rule) for i, rule in wrong]
    return () if wrong else tuple((begin, end) for begin, end in items)
