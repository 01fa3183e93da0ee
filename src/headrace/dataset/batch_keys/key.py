"""Keys that loaders reserve in batches, for marks beside the data's columns."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from headrace.errors import ConfigError

__all__ = ['ReservedKey']


@dataclass(frozen=True, slots=True)
class ReservedKey:
    """A key of batches that are dicts. For other batches the loader has a property instead."""

    key: str
    what: str
    """The setting and its meaning, for messages."""
    instead: str
    """The fix if the data has a column of that name, for messages."""

    def check(self, names: Iterable[str]) -> None:
        """Check that no column has this name.

        Raises:
            ConfigError: one has.
        """
        if self.key in names:
            raise ConfigError(f'{self.what} under {self.key!r}, but the data has a column of that name. {self.instead}')

    def put(self, into: Any, value: Any) -> Any:
        """A copy of a batch or sample with the mark, if it is a mapping; any other comes back as it is.

        Args:
            into: the batch or sample.
            value: the mark.

        Raises:
            ConfigError: the key is taken.
        """
        if not isinstance(into, MutableMapping):
            return into
        self.check(cast('Mapping[str, Any]', into))
        result = copy.copy(cast('MutableMapping[str, Any]', into))
        result[self.key] = value
        return result
