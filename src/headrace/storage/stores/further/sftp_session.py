"""The SFTP protocol, version 3, as far as a store needs it, over one channel of an SSH connection.

Many requests are under way at once, in the caller's thread and in bounded memory. With one at a time, each block would
cost a round trip.

Two libraries could take its place (figures: "Clients of SFTP" in `benchmarks/README.md`).

- paramiko's own client (3.5 to 5.1) loses errors of the last 100 writes of a file, more or less: a full disk looks like
  success. If a connection breaks during a bounded prefetch, its thread spins for ever or prints a trace. A server that
  sends less than 32 KiB at a time is read 30 times slower.
- asyncssh (2.24) tells errors right. Its window of 2 MiB is fixed, so at a round trip of 80 ms it reads at 0.4 of this
  module's speed. It needs an event loop in each process and another login.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import IntEnum
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any, Final

from headrace.storage.transfer.answer_bounds import items_of
from headrace.storage.transfer.http import SourcePart

FOR_READING: Final = 0x01
FOR_NEW_FILE: Final = 0x02 | 0x08 | 0x20  # Write, create, and fail if it exists.

BLOCK: Final = 1 << 15  # Bytes of a request that every server accepts.

LARGEST_BLOCK: Final = 1 << 18  # Bytes of a request, at most, to a server that says that it accepts as many.

REQUESTS: Final = 64  # Reads or writes under way, at most, as in OpenSSH's own client: some servers lose more of them.

WINDOW: Final = 8 << 20  # Bytes that were asked for and not yet delivered, at most.

FOLDER_REQUESTS: Final = 8  # Requests for the names of one folder under way.

LARGEST_PACKET: Final = 1 << 20  # Bytes; a packet that claims more is none.

RECEIVE: Final = 1 << 20


class Kind(IntEnum):
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


class SftpConnectionError(Exception): ...


@dataclass(frozen=True, slots=True)
class Attributes:
    """The server's description of a file; None for missing values."""

    size: int | None
    mode: int | None
    modified: int | None  # Seconds since 1970.

    @property
    def is_file(self) -> bool:
        return self.mode is None or S_ISREG(self.mode)

    @property
    def is_folder(self) -> bool:
        return self.mode is not None and S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
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
        return self._number('>I')

    def uint64(self) -> int:
        return self._number('>Q')

    def string(self) -> bytes:
        length = self.uint32()
        self._at += length
        if self._at > len(self._data):
            raise SftpConnectionError('a string was longer than its packet')
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return self.string().decode('utf-8', 'surrogateescape')

    def attributes(self) -> Attributes:
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
    data = value.encode('utf-8', 'surrogateescape') if isinstance(value, str) else value
    return struct.pack('>I', len(data)) + data


class SftpSession:
    """One conversation with a server; for one thread at a time.

    Methods raise `SftpStatusError` if the server refuses a request. They raise `SftpConnectionError` if the connection
    breaks or stalls, or if the server does not speak SFTP.
    """

    def __init__(self, client: Any, channel: Any, timeout: float) -> None:
        """Begin to speak SFTP on a channel of a client of paramiko, which `close` closes.

        `timeout`: seconds without a single byte until the connection counts as stalled.
        """
        self._client, self._channel, self._timeout = client, channel, timeout
        self._transport = client.get_transport()
        self._received = bytearray()
        self._number = 0
        self._waiting: set[int] = set()
        self._ignored: set[int] = set()
        self._broken = False
        channel.settimeout(timeout)
        self._send(struct.pack('>IBI', 5, Kind.INIT, 3))
        kind, fields = self._packet()
        if kind != Kind.VERSION:
            raise self._break(f'it answered with packet type {kind}, not with its version of SFTP')
        fields.uint32()
        self.extensions: dict[str, bytes] = {}  # Names and data of the server's extensions of the protocol.
        while fields:
            name = fields.text()
            self.extensions[name] = fields.string()
        self._read_size = self._write_size = BLOCK
        if 'limits@openssh.com' in self.extensions:
            _, answer = self._call(Kind.EXTENDED, packed('limits@openssh.com'))
            answer.uint64()
            self._read_size, self._write_size = (
                max(BLOCK, min(limit or BLOCK, LARGEST_BLOCK)) for limit in (answer.uint64(), answer.uint64())
            )
        _open.add(self)

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent: the connection stands, and no answer is missing."""
        return not self._broken and not self._waiting and not self._channel.closed and bool(self._transport.is_active())

    def close(self) -> None:
        self._broken = True
        _open.discard(self)
        # Not the channel, whose farewell would wait for a server that does not read.
        self._client.close()

    def stat(self, path: str) -> Attributes:
        """Attributes of a file, or of the target of a link."""
        return self._call(Kind.STAT, packed(path))[1].attributes()

    def fstat(self, handle: bytes) -> Attributes:
        return self._call(Kind.FSTAT, packed(handle))[1].attributes()

    def open_for_reading(self, path: str) -> bytes:
        return self._call(Kind.OPEN, packed(path), struct.pack('>II', FOR_READING, 0))[1].string()

    def open_new(self, path: str) -> bytes:
        return self._call(Kind.OPEN, packed(path), struct.pack('>II', FOR_NEW_FILE, 0))[1].string()

    def close_file(self, handle: bytes) -> None:
        """Close a file; one that was written is complete then."""
        self._call(Kind.CLOSE, packed(handle))

    def forget_file(self, handle: bytes) -> None:
        """Close a file that was only read, without waiting for the answer."""
        number = self._ask(Kind.CLOSE, packed(handle))
        self._waiting.remove(number)
        self._ignored.add(number)

    def read(self, handle: bytes, offset: int, size: int) -> Generator[bytes]:
        """Blocks of a file, in order; fewer than ``size`` bytes if it ends before."""
        end = offset + size
        asked: dict[int, tuple[int, int]] = {}
        early: dict[int, bytes] = {}
        next_block = delivered = offset

        def ask(at: int, length: int) -> None:
            asked[self._ask(Kind.READ, packed(handle), struct.pack('>QI', at, length))] = at, length

        while delivered < end:
            while next_block < end and next_block - delivered < WINDOW and len(asked) < REQUESTS:
                length = min(self._read_size, end - next_block)
                ask(next_block, length)
                next_block += length
            number, kind, fields = self._answer()
            at, length = asked.pop(number)
            if kind == Kind.STATUS:
                _raise_unless(fields, Status.EOF)
                return
            block = self._expect(Kind.DATA, kind, fields).string()
            if not 0 < len(block) <= length:
                raise self._break(f'it sent {len(block)} bytes of the {length} that were asked for')
            if len(block) < length:
                ask(at + len(block), length - len(block))
            early[at] = block
            while delivered in early:
                block = early.pop(delivered)
                delivered += len(block)
                yield block

    def write(self, handle: bytes, source: SourcePart) -> None:
        at = 0
        more = True
        while more or self._waiting:
            while more and len(self._waiting) < REQUESTS:
                block = source.read(self._write_size)
                more = bool(block)
                if more:
                    self._ask(Kind.WRITE, packed(handle), struct.pack('>Q', at), packed(block))
                    at += len(block)
            if self._waiting:
                _, kind, fields = self._answer()
                _raise_unless(self._expect(Kind.STATUS, kind, fields), Status.OK)

    def finish(self) -> None:
        """Take the answers that are still missing, errors included."""
        while self._waiting:
            self._answer()

    def sync(self, handle: bytes) -> None:
        """Have what was written reach the disk, where the server can do that."""
        if 'fsync@openssh.com' in self.extensions:
            self._call(Kind.EXTENDED, packed('fsync@openssh.com'), packed(handle))

    def entries(self, path: str) -> list[tuple[str, Attributes]]:
        """Names in a folder, in any order, and what they are; links as links."""
        handle = self._call(Kind.OPENDIR, packed(path))[1].string()
        found = [
            item for item in items_of(path, self._pages(handle), lambda item: item[0]) if item[0] not in {'.', '..'}
        ]
        self.forget_file(handle)
        return found

    def _pages(self, folder: bytes) -> Iterator[list[tuple[str, Attributes]]]:
        more = True
        while more or self._waiting:
            while more and len(self._waiting) < FOLDER_REQUESTS:
                self._ask(Kind.READDIR, packed(folder))
            _, kind, fields = self._answer()
            if kind == Kind.STATUS:
                _raise_unless(fields, Status.EOF)
                more = False
                continue
            fields = self._expect(Kind.NAME, kind, fields)
            page: list[tuple[str, Attributes]] = []
            for _ in range(fields.uint32()):
                name = fields.text()
                fields.string()  # a line of `ls`
                page.append((name, fields.attributes()))
            yield page

    def make_folder(self, path: str) -> None:
        self._call(Kind.MKDIR, packed(path), struct.pack('>I', 0))

    def remove(self, path: str) -> None:
        self._call(Kind.REMOVE, packed(path))

    @property
    def replaces(self) -> bool:
        """Whether `rename` replaces a file that has the new name."""
        return 'posix-rename@openssh.com' in self.extensions

    def rename(self, old: str, new: str) -> None:
        if self.replaces:
            self._call(Kind.EXTENDED, packed('posix-rename@openssh.com'), packed(old), packed(new))
        else:
            self._call(Kind.RENAME, packed(old), packed(new))

    def _call(self, kind: int, *fields: bytes) -> tuple[int, Fields]:
        asked = self._ask(kind, *fields)
        number, answer, rest = self._answer()
        if number != asked:
            raise self._break(f'it answered request {number}, not {asked}')
        if answer == Kind.STATUS:
            _raise_unless(rest, Status.OK)
        return answer, rest

    def _ask(self, kind: int, *fields: bytes) -> int:
        self._number = (self._number + 1) & 0xFFFFFFFF
        body = b''.join(fields)
        self._send(struct.pack('>IBI', len(body) + 5, kind, self._number) + body)
        self._waiting.add(self._number)
        return self._number

    def _answer(self) -> tuple[int, int, Fields]:
        """Number, kind and fields of the next answer to a request that is not ignored."""
        while True:
            kind, fields = self._packet()
            number = fields.uint32()
            if number in self._ignored:
                self._ignored.remove(number)
            elif number in self._waiting:
                self._waiting.remove(number)
                return number, kind, fields
            else:
                raise self._break(f'it answered request {number}, which nobody made')

    def _expect(self, expected: int, kind: int, fields: Fields) -> Fields:
        if kind != expected:
            raise self._break(f'it answered with packet type {kind}, not {expected}')
        return fields

    def _packet(self) -> tuple[int, Fields]:
        received = self._received
        self._receive(4)
        (length,) = struct.unpack_from('>I', received)
        if not 0 < length <= LARGEST_PACKET:
            raise self._break(
                f'it sent a packet of {length} bytes, so it does not speak SFTP (do the start-up files of the '
                f"account's shell print something?)"
            )
        self._receive(4 + length)
        kind = received[4]
        with memoryview(received) as view:
            fields = Fields(bytes(view[5 : 4 + length]))
        del received[: 4 + length]
        return kind, fields

    def _receive(self, count: int) -> None:
        """Have ``count`` bytes in the buffer."""
        while len(self._received) < count:
            try:
                data = self._channel.recv(RECEIVE)
            except TimeoutError as error:
                raise self._break(f'no byte came for {self._timeout:g} s') from error
            except Exception as error:
                raise self._break(f'{type(error).__name__}: {error}') from error
            if not data:
                reason = self._transport.get_exception()
                raise self._break(f'it was closed{f" ({reason})" if reason else ""}')
            self._received += data

    def _send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except TimeoutError as error:
            raise self._break(f'the server took no byte for {self._timeout:g} s') from error
        except Exception as error:
            raise self._break(f'{type(error).__name__}: {error}') from error

    def _break(self, reason: str) -> SftpConnectionError:
        """Give the connection up; returns what to raise."""
        self._broken = True
        return SftpConnectionError(reason)

    def _leave(self) -> None:
        """In a forked child: let go of the parent's connection without a word to the server."""
        self._broken = True
        self._transport.sock.close()
        # Its finalizer would say goodbye on the parent's connection, or wait for a lock that a thread of the parent
        # held.
        self._channel.lock = threading.Lock()
        self._channel.closed = True


def _raise_unless(fields: Fields, fine: Status) -> None:
    code = fields.uint32()
    if code != fine:
        raise SftpStatusError(code, fields.text() if fields else '')


_open: set[SftpSession] = set()
_parents: list[SftpSession] = []


def _leave_all() -> None:
    for session in _open:
        session._leave()
    _parents.extend(_open)
    _open.clear()


os.register_at_fork(after_in_child=_leave_all)
