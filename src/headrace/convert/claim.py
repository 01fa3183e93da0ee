"""Locks of a conversion to a folder. Stores have no locks: one conversion at a time is the user's to see to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from headrace.convert.record import DONE, FOLDER, PLAN
from headrace.errors import ConversionError
from headrace.redaction import warn
from headrace.storage import Store
from headrace.storage.cache.locks import held, hold, lock_file, try_lock_file
from headrace.storage.output import make_folder, mapped_lock_errors
from headrace.storage.stores.local import LocalStore, mapped_output_errors

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
    root = store.root
    make_folder(root / FOLDER)
    parent = _open(root / _PARENT)
    with held(parent):
        # Another one may have ended, and removed the file, after it was opened here.
        with mapped_lock_errors(root / _PARENT):
            is_free = try_lock_file(parent, root / _PARENT)
        if not is_free or not _is_there(parent, root / _PARENT):
            raise ConversionError(f'Another conversion is writing to {root}. Wait for it, or choose another `out`.')
        workers = _open(root / _WORKERS)
        with held(workers), mapped_lock_errors(root / _WORKERS):
            lock_file(workers, root / _WORKERS)
        try:
            yield
        finally:
            if not (root / PLAN).exists():
                _remove(root)


def claimed_by_worker(store: Store) -> None:
    """Have the next conversion wait for the end of this worker process."""
    if isinstance(store, LocalStore):
        handle = _open(store.root / _WORKERS)
        hold(handle)
        lock_file(handle, store.root / _WORKERS, shared=True)


def _is_there(handle: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _remove(root: Path) -> None:
    try:
        with mapped_output_errors(root):
            for name in LOCKS:
                (root / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a killed conversion has left records
                (root / FOLDER).rmdir()
            (root / DONE).unlink(missing_ok=True)
    except OSError as error:
        warn(f'Files of a conversion that has ended stay in {root}. The same conversion removes them. {error}')


def _open(path: Path) -> int:
    with mapped_output_errors(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
