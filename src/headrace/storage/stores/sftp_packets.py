"""Fields, kinds and statuses of packets, in version 3 of SFTP."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

__all__ = [
    'FOR_NEW_FILE',
    'FOR_READING',
    'Attributes',
    'Fields',
    'Kind',
    'SftpConnectionError',
    'SftpStatusError',
    'Status',
    'packed',
]

FOR_READING: Final = 0x01
FOR_NEW_FILE: Final = 0x02 | 0x08 | 0x20
"""Write, create, and fail if it exists."""


class Kind(IntEnum):
    """Of a packet."""

    INIT = 1
    VERSION = 2
    OPEN = 3
    CLOSE = 4
    READ = 5
    WRITE = 6
    FSTAT = 8
    OPENDIR = 11
    READDIR = 12
    REMOVE = 13
    MKDIR = 14
    STAT = 17
    RENAME = 18
    STATUS = 101
    DATA = 103
    NAME = 104
    EXTENDED = 200


class Status(IntEnum):
    """Codes of an answer that is nothing but a status."""

    OK = 0
    EOF = 1
    NO_SUCH_FILE = 2
    PERMISSION_DENIED = 3
    FAILURE = 4
    NO_CONNECTION = 6
    CONNECTION_LOST = 7


class SftpStatusError(Exception):
    """The server refused a request; the connection is as good as before."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f'{text or "no reason given"} (status {code})')
        self.code = code


class SftpConnectionError(Exception):
    """The connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """The server's description of a file; None for missing values."""

    size: int | None
    mode: int | None
    modified: int | None
    """Seconds since 1970."""

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file, as far as the server says."""
        return self.mode is None or S_ISREG(self.mode)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and no link to one."""
        return self.mode is not None and S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return self.mode is not None and S_ISLNK(self.mode)


class Fields:
    """Reads the fields of a packet, one after the other; false at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def _number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise SftpConnectionError('a packet ended before its fields did') from error
        self._at += struct.calcsize(form)
        return value

    def uint32(self) -> int:
        """The next field."""
        return self._number('>I')

    def uint64(self) -> int:
        """The next field."""
        return self._number('>Q')

    def string(self) -> bytes:
        """The next field."""
        length = self.uint32()
        self._at += length
        if self._at > len(self._data):
            raise SftpConnectionError('a string was longer than its packet')
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        """The next field, a string."""
        return self.string().decode('utf-8', 'surrogateescape')

    def attributes(self) -> Attributes:
        """The next field."""
        flags = self.uint32()
        size = self.uint64() if flags & 1 else None
        if flags & 2:
            self.uint64()  # owner and group
        mode = self.uint32() if flags & 4 else None
        modified = None
        if flags & 8:
            self.uint32()  # last access
            modified = self.uint32()
        if flags & 0x80000000:
            for _ in range(2 * self.uint32()):
                self.string()
        return Attributes(size, mode, modified)


def packed(value: str | bytes) -> bytes:
    """A field that is a string."""
    data = value.encode('utf-8', 'surrogateescape') if isinstance(value, str) else value
    return struct.pack('>I', len(data)) + data
