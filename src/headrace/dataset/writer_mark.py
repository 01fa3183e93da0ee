"""The mark of an unfinished dataset: which writer it belongs to, and whether that writer still runs.

The writer holds a kernel lock on the mark in its local folder. The lock ends with the process. Only processes of the
same machine are sure to see it, so a mark names the host and its boot, too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from headrace.errors import CacheError
from headrace.storage.locks import hold, let_go, try_lock_file

__all__ = ['LONGEST', 'MARK', 'WriterMark']

MARK: Final = '.headrace-writing'
"""Name of the file in a folder, and at the prefix of a store."""
LONGEST: Final = 1 << 15
"""Bytes of a mark that are read."""
_TITLE: Final = 'unfinished'


@dataclasses.dataclass(frozen=True)
class WriterMark:
    """The writer that a mark names."""

    token: str
    """Of this writer alone."""
    host: str
    boot: str
    """The kernel's id of the host's boot; empty where the system has none."""
    folder: str
    """The absolute path of the local folder, whose mark the writer holds locked."""

    @classmethod
    def of_this_process(cls, folder: Path) -> WriterMark:
        """A new mark for a writer in this process."""
        return cls(secrets.token_hex(16), socket.gethostname(), _boot_id(), str(folder.absolute()))

    @classmethod
    def parse(cls, text: bytes) -> WriterMark | None:
        """Read a mark; None if it is damaged, or not yet written."""
        try:
            mark = cls(**json.loads(text.partition(b'\n')[2]))
        except (ValueError, TypeError, RecursionError):
            return None
        return mark if all(isinstance(value, str) for value in dataclasses.astuple(mark)) else None

    def dump(self) -> bytes:
        """The text of the mark."""
        return f'{_TITLE}\n{json.dumps(dataclasses.asdict(self))}\n'.encode()

    def is_of_this_boot(self) -> bool:
        """Whether this machine has made the mark since it was started: its locks tell whether the writer runs."""
        return self.host == socket.gethostname() and self.boot == _boot_id()

    def is_running(self) -> bool | None:
        """Whether the writer still runs; None if this machine cannot tell."""
        if self.host != socket.gethostname():
            return None
        if not self.is_of_this_boot():
            return False
        path = Path(self.folder, MARK)
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return None
        hold(handle)
        try:
            # A lock beside another mark belongs to a later writer, which has taken the folder over.
            return not try_lock_file(handle, path) and self.parse(os.pread(handle, LONGEST, 0)) == self
        except CacheError:
            return None
        finally:
            let_go(handle)


def _boot_id() -> str:
    try:
        return Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
    except OSError:
        return ''
