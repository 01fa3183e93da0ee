"""The file of a run's record: lines that are appended, each with its own checksum.

A line is a checksum of eight hexadecimal digits, a space, and JSON. A process that is killed while it writes leaves a
line that is cut. A reader ignores it, and the next writer begins a new line behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from headrace.errors import ConfigError
from headrace.redaction import warn

__all__ = ['RECORD', 'RecordFile', 'RecordRead', 'read_record']

RECORD = 'headrace.record'
"""Name of the file in a run's folder."""

_CHECKSUM = 8  # digits


class RecordFile:
    """Appends entries to the record of a run.

    An error of the disk ends no training: it is a warning, and the next entry brings the lines that are missing.

    Args:
        folder: the run's folder; it is made.

    Raises:
        ConfigError: the folder or the file cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD
        self._waiting = deque[bytes]()
        self._has_warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, 'ab+', buffering=0)  # noqa: SIM115 - open until `close`
        except OSError as error:
            raise ConfigError(
                f'The record of a run is a file in a folder of this machine, but {self.path} cannot be written to: '
                f'{error.strerror}. Give another `folder`.'
            ) from error

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append an entry of plain values. One write call, so that lines of several processes do not mix."""
        text = json.dumps(entry, separators=(',', ':')).encode()
        self._waiting.append(b'%08x %s\n' % (zlib.crc32(text), text))
        try:
            self._write_waiting()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f'The record {self.path} cannot be written to: {error.strerror}. The training continues, and the '
                    f'lines wait in memory for the next ones. Make room on the disk.'
                )

    def _write_waiting(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            size = self._file.seek(0, os.SEEK_END)
            if size:
                self._file.seek(size - 1)
                if self._file.read(1) != b'\n':  # a process was killed, or the disk full, in the middle of a line
                    line = b'\n' + line
            if self._file.write(line) == len(line):
                self._waiting.popleft()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # some file systems say here that an earlier write failed
            self._file.close()


class RecordRead(NamedTuple):
    """The content of a record."""

    entries: list[dict[str, Any]]
    """In the order in which they were written."""
    damaged: int
    """Lines that were cut or changed; each was ignored."""


def read_record(folder: Path) -> RecordRead:
    """Read the record in a run's folder.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    path = folder / RECORD
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f'A run with a record has a file {RECORD} in its folder, but {path} cannot be read: {error.strerror}. Name '
            f'the folder that the callback `RunRecord` wrote to.'
        ) from error
    entries: list[dict[str, Any]] = []
    damaged = 0
    for line in content.split(b'\n'):
        entry = _entry(line)
        if entry is not None:
            entries.append(entry)
        elif line:
            damaged += 1
    return RecordRead(entries, damaged)


def _entry(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None: the line is not whole."""
    checksum, text = line[:_CHECKSUM], line[_CHECKSUM + 1 :]
    if line[_CHECKSUM : _CHECKSUM + 1] != b' ' or checksum != b'%08x' % zlib.crc32(text):
        return None
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return cast('dict[str, Any]', entry) if isinstance(entry, dict) else None
