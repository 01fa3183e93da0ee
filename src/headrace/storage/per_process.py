"""What each process makes for itself, such as a client with its connections."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ['PerProcess']

T = TypeVar('T')

_ABSENT = object()


class PerProcess(Generic[T]):
    """A value that is made at its first use in each process, by one thread.

    A forked child makes its own, since connections must not be shared; so does the process that a pickled one comes to.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Take what makes the value; it pickles with this object."""
        self._make = make
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Have it made again at its next use."""
        self._lock = threading.Lock()
        self._made: Any = _ABSENT

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)

    @property
    def is_made(self) -> bool:
        """Whether this process has made it."""
        return self._made is not _ABSENT

    def get(self) -> T:
        """The value, made now if need be."""
        if self._made is _ABSENT:
            with self._lock:
                if self._made is _ABSENT:
                    self._made = self._make()
        return cast('T', self._made)


_all: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _forget_all() -> None:
    for value in list(_all):
        value.forget()


os.register_at_fork(after_in_child=_forget_all)
