"""System calls that fail: a child's file operations are counted, and the one with a given number raises."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ['DISK', 'FULL', 'STOP', 'calls_of', 'in_a_child']

DISK = OSError(errno.EIO, os.strerror(errno.EIO))
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
STOP = KeyboardInterrupt()

# Audit events of calls whose first argument is a path, and functions without an event, whose first is a descriptor.
PATHS = frozenset(
    {'open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.listdir', 'os.scandir', 'os.truncate', 'os.link'}
)
DESCRIPTORS = ('fsync', 'pwrite', 'ftruncate')
READS = ('stat', 'fstat', 'read', 'write', 'pread', 'getxattr', 'setxattr')


def calls_of(action: Callable[[], object], below: object, error: BaseException, *, reads: bool = False) -> int:
    """How many file operations an action makes that this error may meet."""
    status, calls = in_a_child(action, below, 0, error, reads=reads)
    assert status == 'done', status
    return calls


def in_a_child(
    action: Callable[[], object],
    below: object,
    at: int,
    error: BaseException,
    *,
    for_good: bool = False,
    reads: bool = False,
) -> tuple[str, int]:
    """Run something in a child whose file operation number `at` fails.

    Operations on paths count below one folder, those on open files everywhere. An interruption reaches only the main
    thread, as Ctrl-C does, so only its calls count then.

    Args:
        action: what to run.
        below: the folder, or the beginning of its name.
        at: the operation, from 1; 0: none.
        error: what it raises in place of its effect.
        for_good: whether all operations after it fail, too.
        reads: whether operations that read count, too, and those in open folders.

    Returns:
        'done', or the class and message of the exception; and the number of operations.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        calls = _Calls(str(below), at, error, for_good=for_good, reads=reads)
        calls.watch()
        try:
            action()
            outcome = 'done'
        except BaseException as raised:
            outcome = f'{type(raised).__name__}: {raised}'
        calls.at = 0
        os.write(writing, f'{calls.made} {outcome}'.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, 'rb') as pipe:
        made, _, outcome = pipe.read().decode().partition(' ')
    assert os.waitpid(child, 0)[1] == 0
    return outcome, int(made)


class _Calls:
    def __init__(self, below: str, at: int, error: BaseException, *, for_good: bool, reads: bool) -> None:
        self.below, self.at, self.error, self.for_good, self.reads = below, at, error, for_good, reads
        self.made = 0
        self.lock = threading.Lock()

    def watch(self) -> None:
        sys.addaudithook(self.event)
        for name in (*DESCRIPTORS, *(READS if self.reads and self.error is not FULL else ())):
            setattr(os, name, self.before(getattr(os, name)))
        builtins.open = self.open  # pyright: ignore[reportAttributeAccessIssue]

    def event(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.error is FULL and not (
            name in ('os.mkdir', 'os.rename') or (name == 'open' and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        ):
            return  # a full disk fails no other call
        is_lock = name == 'fcntl.flock' and arguments[1] != fcntl.LOCK_UN
        if is_lock or (name in PATHS and self.is_below(arguments[0])):
            self.count()

    def is_below(self, path: Any) -> bool:
        """Whether a path counts; one of an open folder is a bare name, and `listdir` gets that folder itself."""
        if isinstance(path, int):
            return self.reads and self.is_file(path)
        return str(path).startswith(self.below) or (self.reads and str(path)[:1] not in '/.')

    def is_file(self, handle: int) -> bool:
        """Whether a descriptor counts: where reads do, memory and pipes are no files."""
        place = os.readlink(f'/proc/self/fd/{handle}') if self.reads else '/'
        return place.startswith('/') and not place.startswith('/memfd:')

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.is_file(arguments[0]) if isinstance(arguments[0], int) else self.is_below(arguments[0]):
                self.count()
            return function(*arguments, **options)

        return call

    def open(self, file: Any, mode: str = 'r', buffering: int = -1, *arguments: Any, **options: Any) -> Any:
        if mode != 'wb' or not str(file).startswith(self.below):
            return io.open(file, mode, buffering, *arguments, **options)  # noqa: UP020 - `open` is this function
        raw = _Watched(file, mode)
        raw.count = self.count
        return raw if not buffering else io.BufferedWriter(raw)

    def count(self) -> None:
        is_stop = isinstance(self.error, KeyboardInterrupt)
        if is_stop and threading.current_thread() is not threading.main_thread():
            return
        with self.lock:
            self.made += 1
            made = self.made
        if self.at and (made == self.at or (self.for_good and made > self.at)):
            raise self.error


class _Watched(io.FileIO):
    count: Callable[[], None]

    def write(self, data: Any) -> int:
        self.count()
        return super().write(data)
