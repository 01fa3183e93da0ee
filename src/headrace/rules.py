"""Broken rules between arguments: found where the rule belongs, told by whoever was given the arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class BrokenRule(NamedTuple):
    """A rule that does not hold between the arguments of one object, or the keys of one section of a YAML."""

    keys: tuple[str, ...]
    """The arguments that the rule names, or their keys: these have the same names. A message points to the first one
    given."""
    rule: str  # The rule, and what to do.
    inner: tuple[str, ...] = ()  # Arguments of nested objects that the rule depends on.

    def message(self, got: object) -> str:
        """A sentence with the value that was received."""
        return f'{self.rule[:1].upper()}{self.rule[1:]}; got {got}.'


def path_errors(settings: object) -> Iterator[BrokenRule]:
    """The broken rule of `remote`, `local` and `split`: the system takes no NUL in a path."""
    for name in ('remote', 'local', 'split'):
        if '\0' in str(getattr(settings, name)):
            yield BrokenRule((name,), f'`{name}` must be without NUL characters; take them out')
