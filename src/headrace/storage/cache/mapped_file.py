"""Shard files mapped into memory, and the leases that protect them from eviction."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from headrace.errors import CacheError
from headrace.storage.cache.entry import CacheEntry
from headrace.storage.cache.locks import lock_file, unlock_file

_FAILED: Final = ctypes.c_void_p(-1).value

USE_NOTED: Final = 1.0  # Seconds after which a file's time of last use is written again.


def open_file(folder: str, name: str) -> int | None:
    """Open a file of a cache folder for reading; None if it is absent. A CacheError if a link leads out of it."""
    path = f'{folder}/{name}'
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise CacheError(f'This user (uid {os.geteuid()}) may not read {path}. Change its owner or mode.') from error
    except OSError as error:
        if not os.path.islink(path):  # noqa: PTH114 - plain strings on the hot path
            raise
        check_inside(folder, name)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:
            raise error from None
    else:
        if '/' in name:
            try:
                check_inside(folder, name)
            except CacheError:
                os.close(handle)
                raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CacheError(f'A shard is a regular file; {path} is not. Remove it, so that the shard can be fetched.')
    return handle


def check_inside(folder: str, name: str) -> None:
    """Refuse a name whose symbolic links lead out of the folder."""
    real, root = os.path.realpath(f'{folder}/{name}'), os.path.realpath(folder)
    if os.path.commonpath([real, root]) != root:
        raise CacheError(
            f'Nothing in a cache folder may lead out of it, but {folder}/{name} is {real} by a symbolic link. '
            f'Replace the link by the file (cp -L), or name the folder it leads to as `local`.'
        )


def delete_file(folder: Path, name: str) -> int:
    """Delete a file of a cache folder, if it is there; its bytes. A CacheError if a link leads out of the folder."""
    path = folder / name
    if '/' in name:
        check_inside(str(folder), name.rpartition('/')[0])
    try:
        size = path.lstat().st_size
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return size


_library = ctypes.CDLL(None, use_errno=True)
_map = _library.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_unmap = _library.munmap
_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Pages:
    """A mapped file's pages, for NumPy; they are unmapped with their last reference.

    Python's own `mmap.mmap` keeps a descriptor open for each map (optional from 3.13 on). A thousand mapped shards
    would reach the limit of descriptors of most systems.
    """

    __slots__ = ('__array_interface__', '_address', '_size')

    def __init__(self, handle: int, size: int) -> None:
        """Map an open file of ``size`` bytes, at least one."""
        self._size = 0
        self._address = _map(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
        if self._address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._size = size
        self.__array_interface__: dict[str, Any] = {
            'data': (self._address, True),
            'shape': (size,),
            'typestr': '|u1',
            'version': 3,
        }

    def __del__(self, unmap: Any = _unmap) -> None:  # at the interpreter's end, a module has lost its names
        if self._size:
            unmap(self._address, self._size)


class MappedFile:
    __slots__ = ('_handle', '_pid', 'buffer', 'size', 'written')

    def __init__(self, handle: int, *, locked: bool) -> None:
        """Take over an open descriptor; ``locked`` if the file is going to be locked, or is so already."""
        self._handle = handle if locked else -1
        self._pid = os.getpid() if locked else 0
        try:
            info = os.fstat(handle)
            self.size, self.written = info.st_size, info.st_mtime
            # An empty file cannot be mapped.
            self.buffer = np.asarray(_Pages(handle, self.size)).data if self.size else memoryview(b'')
        except BaseException:
            os.close(handle)
            raise
        if not locked:
            os.close(handle)

    def lock(self, path: str) -> bool:
        """Take the shared lock that keeps the file from being evicted.

        False: it was evicted, or has another size by now: what lies behind its end must not be read.
        """
        lock_file(self._handle, path, shared=True)
        info = os.fstat(self._handle)
        if not info.st_nlink or info.st_size != self.size:
            return False
        if (now := time.time()) - info.st_atime > USE_NOTED:
            with contextlib.suppress(OSError):  # another user's file, or a folder mounted read-only: it keeps its time
                os.utime(self._handle, ns=(int(now * 1e9), info.st_mtime_ns))
        return True

    def read(self, at: int, count: int) -> bytes:
        return bytes(self.buffer[at : at + count])

    @property
    def is_locked(self) -> bool:
        return self._handle >= 0

    def unlock(self) -> None:
        """Let the file be evicted. Its map stays readable: the system keeps the bytes until the unmap."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        if self._pid == os.getpid():
            # Explicitly: a forked child may hold a copy of the descriptor.
            unlock_file(handle)
        os.close(handle)

    def close(self) -> None:
        """Unlock and unmap; arrays and views of the buffer that are still in use keep the mapping until they die."""
        self.unlock()
        with contextlib.suppress(BufferError):
            self.buffer.release()
        self.buffer = memoryview(b'')


def map_files(folder: str, entry: CacheEntry, *, locked: bool, first: int | None = None) -> tuple[MappedFile, ...]:
    """Map a shard's files; () if a part is absent, or not of the right size.

    `locked`: keep it from being evicted: the lock of the first part, which is open and locked already if it is given.
    """
    files: list[MappedFile] = []
    try:
        for part in entry.parts:
            handle = first if first is not None else open_file(folder, part.name)
            first = None
            if handle is None:
                break
            file = MappedFile(handle, locked=locked and not files)
            files.append(file)
            if locked and len(files) == 1 and not file.lock(f'{folder}/{part.name}'):
                break
            if not part.has_size(file.size, file.read):
                break
        else:
            return tuple(files)
    except BaseException:
        close_files(files)
        raise
    close_files(files)
    return ()


def close_files(files: Iterable[MappedFile]) -> None:
    for file in files:
        file.close()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()  # Those that this thread holds under a limit.


_mine = _OfThread()


def suspend_leases() -> None:
    """Unlock all leases that this thread holds, before it waits."""
    for lease in list(_mine.leases):
        lease.suspend()


class Lease:
    """A present shard: its files are mapped, and under a limit they are not evicted until `release`.

    Hold a lease during a read, never during a wait: under a limit, other processes may wait for the disk space. A
    thread that fetches suspends its leases, so that two processes never wait for each other. Their buffers stay valid.

    A forked child inherits the buffers of its parent's leases, but not the right to them: it acquires its own.
    """

    __slots__ = ('__weakref__', '_files', '_locked', 'entry')

    def __init__(self, entry: CacheEntry, files: tuple[MappedFile, ...], *, locked: bool) -> None:
        self._files = files
        self._locked = locked
        self.entry = entry
        self.attach()

    def attach(self) -> None:
        """Let this thread hold the lease."""
        if self._locked:
            _mine.leases.add(self)

    def detach(self) -> None:
        """Let no thread hold the lease: its keeper must release it soon."""
        if self._locked:
            _mine.leases.discard(self)

    @property
    def is_valid(self) -> bool:
        """Whether the shard cannot be evicted: the lease was neither released nor, under a limit, suspended."""
        return bool(self._files) and (not self._locked or self._files[0].is_locked)

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        return tuple(file.buffer for file in self._files)

    def release(self) -> None:
        """Give the shard back; may be repeated. Arrays made from the buffers stay valid."""
        files, self._files = self._files, ()
        close_files(files)

    def suspend(self) -> None:
        """Keep the buffers, and let the files be evicted."""
        for file in self._files:
            file.unlock()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.release()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end, this module or another may have lost its names; then the system unlocks and unmaps.
        if not is_finalizing() and _mine is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.release()
