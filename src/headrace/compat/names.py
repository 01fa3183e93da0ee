"""The entries of the tables: the counterpart of one name of MosaicML Streaming, or the reason for its absence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ['Absent', 'Alias', 'Entry', 'Tables', 'absent', 'alias', 'meaningless']


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that headrace has."""

    target: str
    """Module and name of the object, as 'headrace.format:get_hash'. It is imported when it is first used."""
    difference: str = ''
    """Sentences on differences for users; empty: there are none."""

    @property
    def status(self) -> str:
        """For the documentation: 'works' or 'differs'."""
        return 'differs' if self.difference else 'works'


@dataclass(frozen=True, slots=True)
class Absent:
    """A name that headrace does not have."""

    status: str
    """For the documentation: 'absent' or 'no meaning'."""
    reason: str
    """Sentences on why, and what to use."""


Entry: TypeAlias = Alias | Absent
Tables: TypeAlias = Mapping[str, Mapping[str, Entry]]
"""By module of `streaming`, the entries of its names."""


def alias(home: str, *names: str, difference: str = '') -> dict[str, Entry]:
    """Entries of names that a module of headrace has under the same names."""
    return {name: Alias(f'{home}:{name}', difference) for name in names}


def absent(reason: str, *names: str) -> dict[str, Entry]:
    """Entries of names that headrace does not have."""
    return {name: Absent('absent', reason) for name in names}


def meaningless(reason: str, *names: str) -> dict[str, Entry]:
    """Entries of names for things that headrace does without."""
    return {name: Absent('no meaning', reason) for name in names}
