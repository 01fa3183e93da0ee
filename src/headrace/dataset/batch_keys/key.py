"""Marks: what loaders put into a batch beside the data's columns, under a key of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from headrace.errors import ConfigError

__all__ = ['ReservedKey']


@dataclass(frozen=True, slots=True)
class ReservedKey:
    """A key of batches that are dicts. Others cannot hold it; their loader answers in its place."""

    key: str
    what: str
    """What marks what, for messages."""
    instead: str
    """What to do where the data has the key itself, for messages."""

    def check(self, names: Iterable[str]) -> None:
        """Check that no column has the name of the mark.

        Raises:
            ConfigError: one has.
        """
        if self.key in names:
            raise ConfigError(f'{self.what} under {self.key!r}, but the data has a column of that name. {self.instead}')

    def put(self, into: Any, value: Any) -> Any:
        """A batch or a sample with the mark, if it is a dict or the like; otherwise the same as before.

        Args:
            into: what a loader is about to hand out; it is not changed.
            value: the mark.

        Raises:
            ConfigError: it has something else under the key of the mark.
        """
        if not isinstance(into, MutableMapping):
            return into
        self.check(cast('Mapping[str, Any]', into))
        result = copy.copy(cast('MutableMapping[str, Any]', into))
        result[self.key] = value
        return result
