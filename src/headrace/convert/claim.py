"""Locks of a conversion to a folder. Stores have no locks: one conversion at a time is the user's to see to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from headrace.convert.record import FOLDER
from headrace.errors import ConversionError
from headrace.storage import Store
from headrace.storage.cache.locks import held, hold, lock_file, try_lock_file
from headrace.storage.stores.local import LocalStore

__all__ = ['LOCKS', 'claimed', 'claimed_by_worker']

_PARENT: Final = f'{FOLDER}/parent.lock'
_WORKERS: Final = f'{FOLDER}/workers.lock'
LOCKS: Final = frozenset({_PARENT, _WORKERS})
"""Files in the folder of an unfinished conversion."""


@contextlib.contextmanager
def claimed(store: Store) -> Generator[None]:
    """Hold a folder for one conversion. Waits until the workers of a killed one have ended.

    Raises:
        ConversionError: another conversion to the folder runs.
    """
    if not isinstance(store, LocalStore):
        yield
        return
    (store.root / FOLDER).mkdir(parents=True, exist_ok=True)
    parent = _open(store.root / _PARENT)
    with held(parent):
        if not try_lock_file(parent, store.root / _PARENT):
            raise ConversionError(
                f'Another conversion is writing to {store.root}. Wait for it, or choose another `out`.'
            )
        workers = _open(store.root / _WORKERS)
        with held(workers):
            lock_file(workers, store.root / _WORKERS)
        yield


def claimed_by_worker(store: Store) -> None:
    """Have the next conversion wait for the end of this worker process."""
    if isinstance(store, LocalStore):
        handle = _open(store.root / _WORKERS)
        hold(handle)
        lock_file(handle, store.root / _WORKERS, shared=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
