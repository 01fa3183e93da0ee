"""fsspec's file system for SFTP, on a connection of ours: paramiko's own client with many requests under way.

Its ``prefetch`` and its pipelined writes are not used. They lose errors of the last writes of a file, so that a full
disk looks like success. They read a server that sends less than 32 KiB at a time 30 times slower, and may leave a
thread behind (figures: "Clients of SFTP" in `benchmarks/README.md`).

It imports paramiko, so `sftp` imports it at the first use only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any, Final

from fsspec.implementations.sftp import SFTPFileSystem
from paramiko import SFTPClient, SSHException
from paramiko.sftp import CMD_DATA, CMD_EXTENDED, CMD_EXTENDED_REPLY, CMD_READ, CMD_STATUS, CMD_WRITE, SFTPError, int64

from headrace.errors import StorageError
from headrace.storage.stores.further.sftp_credentials import SftpConnectionError, connect

BLOCK: Final = 1 << 15  # Bytes of a request that every server accepts.
LARGEST_BLOCK: Final = 1 << 18  # Bytes of a request, at most, to a server that says that it accepts as many.
REQUESTS: Final = 64  # Reads or writes under way, at most, as in OpenSSH's own client: some servers lose more of them.
WINDOW: Final = 8 << 20  # Bytes that were asked for and not yet delivered, at most.
NAMES: Final = 2_000_000  # Of one folder, at most.


class SftpFiles(SFTPFileSystem):
    """Its keywords are ``credentials`` and ``options``."""

    def _connect(self) -> None:
        options = self.ssh_kwargs['options']
        self.client, channel = connect(self.ssh_kwargs['credentials'], options)
        channel.settimeout(options.read_timeout)
        try:
            self.ftp: Any = SFTPClient(channel)
            self.read_size, self.write_size = self._limits()
        except (SFTPError, SSHException, EOFError, OSError) as error:
            self.client.close()
            if isinstance(error, SFTPError):
                raise SftpConnectionError(
                    f"what it sent is no packet, so it does not speak SFTP (do the start-up files of the account's "
                    f'shell print something?): {error}'
                ) from error
            raise SftpConnectionError(f'no SFTP session: {type(error).__name__}: {error}') from error
        _open[id(self)] = self

    def _limits(self) -> tuple[int, int]:
        """Bytes of a read and of a write that the server accepts."""
        try:
            kind, answer = self.ftp._request(CMD_EXTENDED, 'limits@openssh.com')
        except OSError:
            if not self.is_usable:
                raise
            return BLOCK, BLOCK
        if kind != CMD_EXTENDED_REPLY:
            return BLOCK, BLOCK
        _, read, write = answer.get_int64(), answer.get_int64(), answer.get_int64()
        return max(BLOCK, min(read or BLOCK, LARGEST_BLOCK)), max(BLOCK, min(write or BLOCK, LARGEST_BLOCK))

    @property
    def is_usable(self) -> bool:
        """Whether the connection stands."""
        transport = self.client.get_transport()
        return transport is not None and transport.is_active() and not self.ftp.sock.closed

    def close(self) -> None:
        _open.pop(id(self), None)
        # Not the channel, whose farewell would wait for a server that does not read.
        self.client.close()

    @staticmethod
    def _decode_stat(stat: Any, parent_path: str | None = None) -> dict[str, Any]:
        mode = stat.st_mode
        kinds = {'file': S_ISREG, 'directory': S_ISDIR, 'link': S_ISLNK}
        kind = 'file' if mode is None else next((name for name, holds in kinds.items() if holds(mode)), 'other')
        name = f'{parent_path.rstrip("/")}/{stat.filename}' if parent_path else ''
        return {'name': name, 'type': kind, 'size': stat.st_size, 'mtime': stat.st_mtime}

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:  # noqa: ARG002
        """The entries of a folder; one that does not end is refused."""
        entries: dict[str, dict[str, Any]] = {}
        for told in self.ftp.listdir_iter(path):
            if told.filename in entries or len(entries) >= NAMES:
                raise StorageError(
                    f'Listing {path}: the server sent {told.filename!r} twice, or more than {NAMES} names, so that '
                    f'the listing does not end. Check the server.'
                )
            entries[told.filename] = self._decode_stat(told, path)
        return list(entries.values())

    def _open(self, path: str, mode: str = 'rb', **_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if mode != 'rb':
            return SftpWriter(self, path)
        return SftpReader(self, path)

    def _rm(self, path: str) -> None:
        self.ftp.remove(path)


class _Requests:
    """Requests under way. paramiko gives their answers to `_async_response`."""

    def __init__(self, files: SftpFiles, handle: bytes) -> None:
        self._client, self._handle = files.ftp, handle
        self.pending: dict[int, tuple[int, int]] = {}  # Offset and bytes.
        self.blocks: dict[int, bytes] = {}  # Those that came, by their offsets.

    def read(self, offset: int, size: int) -> None:
        self._ask(CMD_READ, offset, size, size)

    def write(self, offset: int, block: bytes) -> None:
        self._ask(CMD_WRITE, offset, len(block), block)

    def _ask(self, kind: int, offset: int, size: int, last: Any) -> None:
        # The number is known before the answer can come, since only this thread takes answers.
        number = self._client._async_request(self, kind, self._handle, int64(offset), last)
        self.pending[number] = offset, size

    def take(self) -> None:
        """Wait for one answer."""
        self._client._read_response()

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        offset, size = self.pending.pop(number)
        if kind == CMD_STATUS:
            self._client._convert_status(message)
            return
        block = message.get_string()
        if kind != CMD_DATA or not 0 < len(block) <= size:
            raise SftpConnectionError(f'it sent {len(block)} bytes of the {size} that were asked for')
        if len(block) < size:
            self.read(offset + len(block), size - len(block))
        self.blocks[offset] = block


class SftpReader:
    is_pinned = True  # The handle stays with the file that it was opened for.

    def __init__(self, files: SftpFiles, path: str) -> None:
        self._files = files
        self._file = files.ftp.open(path, 'rb', bufsize=0)
        self.details = files._decode_stat(self._file.stat())
        self.close = self._file.close

    def blocks(self, offset: int, size: int) -> Iterator[bytes]:
        """Blocks of the file, in order; fewer than ``size`` bytes if it ends before."""
        files = self._files
        requests = _Requests(files, self._file.handle)
        end, following, delivered = offset + size, offset, offset
        while delivered < end:
            while following < end and following - delivered < WINDOW and len(requests.pending) < REQUESTS:
                length = min(files.read_size, end - following)
                requests.read(following, length)
                following += length
            begin, ready = delivered, list[bytes]()
            while not ready or (requests.pending and delivered - begin < LARGEST_BLOCK and files.ftp.sock.recv_ready()):
                try:
                    requests.take()
                except EOFError:
                    end = 0
                    break
                while block := requests.blocks.pop(delivered, b''):
                    delivered += len(block)
                    ready.append(block)
            yield b''.join(ready)


class SftpWriter:
    """A new file. Each write has been answered when `close` returns, and the bytes are on the disk if it can say so."""

    def __init__(self, files: SftpFiles, path: str) -> None:
        self._files = files
        self._file = files.ftp.open(path, 'wx', bufsize=0)
        self._requests, self._at = _Requests(files, self._file.handle), 0

    def write(self, data: bytes) -> int:
        for begin in range(0, len(data), self._files.write_size):
            block = data[begin : begin + self._files.write_size]
            self._finish(REQUESTS - 1)
            self._requests.write(self._at, block)
            self._at += len(block)
        return len(data)

    def close(self) -> None:
        try:
            self._finish(0)
            self._sync()
        finally:
            self._file.close()

    def _finish(self, left: int) -> None:
        while len(self._requests.pending) > left:
            self._requests.take()

    def _sync(self) -> None:
        try:
            self._files.ftp._request(CMD_EXTENDED, 'fsync@openssh.com', self._file.handle)
        except PermissionError:  # the server forbids this request
            pass
        except OSError as error:
            if 'unsupported' not in str(error).lower():
                raise


_open: dict[int, SftpFiles] = {}
_parents: list[SftpFiles] = []


def _leave_all() -> None:
    """In a forked child: let go of the parent's connections without a word to their servers."""
    for files in _open.values():
        files.client.get_transport().sock.close()  # pyright: ignore[reportOptionalMemberAccess]
        # Its finalizer would say goodbye on the parent's connection, or wait for a lock that a thread of the parent
        # held.
        files.ftp.sock.lock = threading.Lock()
        files.ftp.sock.closed = True
    _parents.extend(_open.values())
    _open.clear()


os.register_at_fork(after_in_child=_leave_all)
