"""Values that each process makes for itself, such as a client with its connections."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar('T')

_ABSENT = object()


class PerProcess(Generic[T]):
    """A value that is made at its first use in each process, by one thread.

    A forked child makes its own, since connections must not be shared; so does a process that unpickles it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Take what makes the value; it pickles with this object."""
        self._make = make
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """Start without a value, as after a fork: another thread may have held the lock."""
        self._lock = threading.Lock()
        self._made: Any = _ABSENT

    def forget(self, only: T | None = None) -> None:
        """Make the value again at its next use; with ``only``, if that is the current one."""
        with self._lock:
            if only is None or self._made is only:
                self._made = _ABSENT

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)

    @property
    def is_made(self) -> bool:
        return self._made is not _ABSENT

    def get(self) -> T:
        """The value, made now if need be."""
        made = self._made  # which another thread may have forgotten a moment later
        if made is _ABSENT:
            with self._lock:
                made = self._made
                if made is _ABSENT:
                    made = self._made = self._make()
        return cast('T', made)


_all: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _begin_all() -> None:
    for value in list(_all):
        value.begin()


os.register_at_fork(after_in_child=_begin_all)
