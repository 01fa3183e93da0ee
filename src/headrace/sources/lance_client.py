"""Lance in a process of its own, `lance_process`, which never forks and reads local files only.

A process of ours has one, which answers one request after another, and its threads take turns.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import DiskFullError, MissingDependencyError, ShardError, StorageError
from headrace.sources.arrow_types import import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

_PATIENCE: Final = 60.0
"""Seconds after which a reader takes a process of its own: it may have begun another part itself."""

_idle: dict[int, tuple[threading.Lock, list[subprocess.Popen[bytes]]]] = {}
"""Lance's process, if it has no request, and the turn to use it, by the process that started it: a fork has its own."""


class LanceFile(NamedTuple):
    name: str  # Relative to the dataset's folder.
    size: int
    pieces: Sequence[tuple[int, bytes | memoryview]]  # Content at its offsets. The rest is a hole, which takes no room.


def ask_lance(files: Iterable[LanceFile], request: Mapping[str, Any], source: str) -> Iterator[pa.RecordBatch]:
    """The answer of `lance_process` about a dataset of these files.

    ShardError: Lance cannot read the data. StorageError: its process was killed, or cannot start. DiskFullError: the
    files have no room.
    """
    if importlib.util.find_spec('lance') is None:
        raise MissingDependencyError(
            "Lance datasets need pylance, which is not installed: pip install 'headrace[lance]'"
        )
    with _folder() as folder:
        for file in files:
            _write(folder, file)
        yield from _answers(folder, request, source)


def _answers(folder: Path, request: Mapping[str, Any], source: str) -> Iterator[pa.RecordBatch]:
    pa = import_pyarrow('Lance datasets')
    turn, idle = _idle.setdefault(os.getpid(), (threading.Lock(), []))
    line = json.dumps({'path': str(folder), **request}).encode() + b'\n'
    has_turn, process, is_done = turn.acquire(timeout=_PATIENCE), None, False
    try:
        process = idle.pop() if idle else _start()
        try:
            stream = _ask(process, line)
        except (pa.ArrowException, OSError, ValueError):  # it may have ended while it was idle
            _end(process)
            process = _start()
            stream = _ask(process, line)
        yield from stream
        is_done = True
        if b'error' in (stream.schema.metadata or {}):
            raise OSError(stream.schema.metadata[b'error'].decode())
    except StorageError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if process is not None and not is_done and _was_killed(process):
            raise StorageError(
                f'The process of Lance that read {source} was killed, as a system does that is short of memory. Use '
                f'fewer workers or smaller pages, or give it more memory.'
            ) from error
        raise ShardError(f'{source} cannot be read by Lance: {error!s:.400}. Restore it.') from error
    finally:
        if process is not None and is_done and not idle:
            idle.append(process)
        elif process is not None:
            _end(process)
        if has_turn:
            turn.release()


def _ask(process: subprocess.Popen[bytes], line: bytes) -> Any:
    """Send a request, and open the stream of the answer."""
    pa = import_pyarrow('Lance datasets')
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()
    return pa.ipc.open_stream(pa.PythonFile(process.stdout, 'r'))


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name('lance_process.py'))]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=none)  # noqa: S603
    except OSError as error:  # no fault of the data
        raise StorageError(f'The process of Lance cannot start: {error}. Allow more processes, or memory.') from error


def _was_killed(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process ended by a kill, and not by an error of its own, which damaged data can cause."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(1) == -signal.SIGKILL
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError), process:  # unsent bytes are not wanted
        process.kill()


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    """A temporary folder. Those of processes that were killed are removed, which their locks tell."""
    prefix = 'headrace-lance-'
    for old in Path(tempfile.gettempdir()).glob(f'{prefix}*'):
        with contextlib.suppress(OSError):  # in use, or of another user
            lock = os.open(old, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old)
            finally:
                os.close(lock)
    try:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix))
            with contextlib.suppress(FileNotFoundError):  # removed by another process, which saw it without a lock
                lock = os.open(folder, os.O_RDONLY)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if folder.exists():
                    break
                os.close(lock)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:  # not the cache folder, which others would make room in
            raise DiskFullError(
                f'{tempfile.gettempdir()} has no room for pages of Lance. Make room there, or set TMPDIR to a larger '
                f'disk.'
            ) from error
        raise


def _write(folder: Path, file: LanceFile) -> None:
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('xb') as out:
        out.truncate(file.size)
        for offset, piece in file.pieces:
            out.seek(offset)
            out.write(piece)
