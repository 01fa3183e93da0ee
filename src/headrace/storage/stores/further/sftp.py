"""Folders of SSH servers, through paramiko.

headrace reads ``~/.ssh/config`` as ``ssh`` does: aliases, ``User``, ``Port``, ``IdentityFile``, ``IdentitiesOnly`` and
``UserKnownHostsFile``, but no ``Include`` and no proxies. It uses the keys of the ssh-agent and of ``~/.ssh``. Keys
with a passphrase have to be in the agent. If the server accepts no key, the password is that of
``HEADRACE_SFTP_PASSWORD``. A URL with a password is refused, since URLs end up in logs and checkpoints. The server's
host key must be known.

``StoreOptions.extra``: ``key_file`` (a private key; else ``COMPOSER_SFTP_KEY_FILE``), ``known_hosts`` (the only file of
host keys; else ``COMPOSER_SFTP_KNOWN_HOSTS_FILE``) and ``max_connections`` (per process; 4). ``connect_timeout`` bounds
the connection, and again the handshake. ``read_timeout`` bounds every other wait for a byte.

An etag is made of size and time of change in seconds, which is all that SFTP tells. A file that replaces one of the
same size within a second counts as the same version.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import threading
import weakref
from typing import TYPE_CHECKING, BinaryIO, Final

from headrace.errors import AccessDeniedError, ConfigError, MissingDependencyError, ObjectNotFoundError, StorageError
from headrace.redaction import logger_of
from headrace.storage.protocol import ObjectInfo, StoreOptions, check_extra, check_key, count_option, is_blocking
from headrace.storage.resolve import split_url
from headrace.storage.stores.further.sftp_session import Attributes, SftpConnectionError, SftpStatusError, Status
from headrace.storage.stores.local import TEMPORARY, temporary_keys, temporary_name, walk
from headrace.storage.transfer.http import ReadRequest, SourcePart, changed, not_found, truncated
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from headrace.storage.stores.further.sftp_credentials import SftpCredentials
    from headrace.storage.stores.further.sftp_session import SftpSession

_log = logger_of(__name__)

EXTRA: Final = frozenset({'key_file', 'known_hosts', 'max_connections'})
MAX_CONNECTIONS: Final = 4


def open_sftp_store(url: str, options: StoreOptions) -> SftpStore:
    """The store for ``sftp://[user@]host[:port]/absolute/path``."""
    _, rest = split_url(url)
    authority, slash, path = rest.partition('/')
    user, _, server = authority.rpartition('@')
    host, port = _split_port(server)
    if ':' in user:
        raise ConfigError(
            f'An SFTP URL holds no password, which would end up in logs; got one for {user.partition(":")[0]!r} at '
            f'{server!r}. Use a key, or put the password into HEADRACE_SFTP_PASSWORD.'
        )
    if not host or not slash or (port is not None and not (port.isdecimal() and 0 < int(port) < 1 << 16)):
        raise ConfigError(
            f'An SFTP URL names a host and an absolute path, as in sftp://user@host:22/data/x; got {url!r}. Correct '
            f'the host, the port or the path.'
        )
    return SftpStore(host, f'/{path}', port=int(port) if port else None, user=user or None, options=options)


def _split_port(server: str) -> tuple[str, str | None]:
    if server.startswith('['):  # an IPv6 address
        host, _, port = server[1:].partition(']')
        return host, port.removeprefix(':') if port else None
    host, colon, port = server.partition(':')
    return host, port if colon else None


@sealed
class SftpStore:
    """Regular files below a folder of an SSH server. Connections are made when they are needed, in each process."""

    def __init__(
        self,
        host: str,
        root: str,
        *,
        port: int | None = None,
        user: str | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        """Take what a URL holds; ``host`` may be an alias of ``~/.ssh/config``."""
        self.host, self.port, self.user = host, port, user
        self.root = '/' + root.strip('/')
        self.options = options or StoreOptions()
        check_extra(self.options, EXTRA, 'an SFTP store')
        self._max_connections = count_option(self.options, 'max_connections', MAX_CONNECTIONS)
        self._connection = PerProcess(self._connect)

    @property
    def url(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        user = f'{self.user}@' if self.user else ''
        return f'sftp://{user}{host}{f":{self.port}" if self.port else ""}{self.root}'

    def __repr__(self) -> str:
        return f'SftpStore({self.url!r})'

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        path, url = self._path(key), f'{self.url}/{key}'
        found = ''
        try:
            with self._session('Reading', key) as session:
                handle = session.open_for_reading(path)
                try:
                    info = self._info(key, session.fstat(handle))
                    found = info.etag
                    if etag and etag != found:
                        raise changed(url, etag, found)
                    left = ReadRequest(url, offset, size).check(info)
                    for block in session.read(handle, offset, left):
                        out.write(block)
                        left -= len(block)
                    if left:
                        raise truncated(url, left)
                finally:
                    if session.is_usable:
                        session.forget_file(handle)
        except BrokenTransferError as error:
            if not error.changed:
                error.etag = found or None
            raise
        return found

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. A connection that breaks meanwhile leaves a hidden file ``.headrace-put-*`` behind."""
        path = self._path(key)
        temporary = f'{posixpath.dirname(path)}/{temporary_name()}'
        with self._session('Writing', key) as session:
            try:
                handle = session.open_new(temporary)
            except SftpStatusError as error:
                if error.code != Status.NO_SUCH_FILE:
                    raise
                _make_folders(session, posixpath.dirname(path))
                handle = session.open_new(temporary)
            try:
                session.write(handle, SourcePart(source, size))
                session.sync(handle)
                session.close_file(handle)
                session.rename(temporary, path)
            except SftpConnectionError:
                raise
            except BaseException as error:
                with contextlib.suppress(SftpStatusError, SftpConnectionError):
                    session.finish()
                    session.forget_file(handle)
                    session.remove(temporary)
                if isinstance(error, SftpStatusError) and not session.replaces and _exists(session, path):
                    raise StorageError(
                        f'{self.url}/{key} exists, and its server cannot replace a file at once (it lacks '
                        f'posix-rename@openssh.com). Delete the object first.'
                    ) from error
                raise

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._session('Looking up', key) as session:
            return self._info(key, session.stat(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`. Links to files are followed. Those to folders get a warning: a loop would never end."""
        with self._session('Listing', prefix) as session:
            found = walk(prefix, lambda folder: self._children(session, folder, prefix))
        yield from found

    def remove_unfinished(self, folders: Iterable[str]) -> None:
        """See `LocalStore.remove_unfinished`."""
        with self._session('Listing', '') as session:
            keys = temporary_keys(
                folders, lambda folder: self._children(session, folder, f'{folder}/{TEMPORARY}'.lstrip('/'))
            )
        for key in keys:
            self.delete(key)

    def _children(self, session: SftpSession, folder: str, prefix: str) -> Iterator[ObjectInfo | str]:
        path = f'{self._base}/{folder}' if folder else self.root
        try:
            entries = session.entries(path)
        except SftpStatusError as error:
            if error.code == Status.NO_SUCH_FILE:  # or deleted meanwhile
                return
            raise
        for name, told in entries:
            key = f'{folder}/{name}' if folder else name
            if told.is_folder:
                yield key
            elif key.startswith(prefix):  # to look at others would cost requests
                partial = told.is_link or told.size is None or told.modified is None
                try:
                    yield self._info(key, _target(session, f'{path}/{name}') if partial else told)
                except ObjectNotFoundError:
                    if told.is_link:
                        _log.warning('%s/%s is a link to no file. Over SFTP it is left out.', self.url, key)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._session('Deleting', key) as session:
            try:
                session.remove(path)
            except SftpStatusError as error:
                if error.code != Status.NO_SUCH_FILE:
                    raise

    @property
    def _base(self) -> str:
        return self.root.rstrip('/')

    def _path(self, key: str) -> str:
        return f'{self._base}/{check_key(key)}'

    def _info(self, key: str, attributes: Attributes) -> ObjectInfo:
        if not attributes.is_file:
            raise not_found(f'{self.url}/{key}', 'it is not a regular file.')
        if attributes.size is None:
            raise StorageError(f'{self.host} does not say how large {self.url}/{key} is. Use a server that does.')
        etag = '' if attributes.modified is None else f'{attributes.modified:x}-{attributes.size:x}'
        return ObjectInfo(key, attributes.size, etag)

    def _connect(self) -> _Connections:
        try:
            from headrace.storage.stores.further.sftp_credentials import (
                find_credentials,
                open_session,
            )  # which imports paramiko
        except ImportError as error:
            raise MissingDependencyError(
                f'{self.url} needs paramiko, which is not installed. Run: pip install "headrace[sftp]"'
            ) from error
        credentials = find_credentials(self.host, self.port, self.user, self.options)
        return _Connections(credentials, lambda: open_session(credentials, self.options), self._max_connections)

    @contextlib.contextmanager
    def _session(self, doing: str, key: str) -> Generator[SftpSession]:
        """A connection for one operation, whose failures become headrace's exceptions."""
        connections = self._connection.get()
        try:
            with connections.borrow() as session:
                try:
                    yield session
                except SftpStatusError as error:
                    raise self._from_status(doing, key, session, connections.credentials, error) from error
        except SftpConnectionError as error:
            raise BrokenTransferError.at(
                f'{doing} {self.url}/{key} at {connections.credentials.server} broke: {error}.'
            ) from error

    def _from_status(
        self, doing: str, key: str, session: SftpSession, credentials: SftpCredentials, error: SftpStatusError
    ) -> StorageError:
        what = f'{doing} {self.url}/{key} at {credentials.server}'
        if error.code == Status.NO_SUCH_FILE:
            why = _why_absent(session, self._path(key))
            return not_found(f'{self.url}/{key}', f'{why} at {credentials.server}. Check the URL.')
        if error.code == Status.PERMISSION_DENIED:
            return AccessDeniedError(
                f'{what}: {error}. The connection was made with {credentials}. Use a user who may do this, or change '
                f"the file's mode."
            )
        temporary = {Status.NO_CONNECTION, Status.CONNECTION_LOST}
        if doing == 'Reading':
            temporary.add(Status.FAILURE)  # an I/O error, perhaps of a network file system
        if error.code in temporary:
            return BrokenTransferError.at(f'{what}: {error}.')
        return StorageError(
            f'{what}: {error}. SFTP tells no more; a full disk, a quota and an I/O error look like this: see the '
            f"server's log."
        )


class _Connections:
    """The connections of a process: each serves one thread at a time, the rest wait for their next use.

    One of several is kept for urgent reads.
    """

    def __init__(self, credentials: SftpCredentials, connect: Callable[[], SftpSession], limit: int) -> None:
        self.credentials = credentials
        self._connect = connect
        self._free = threading.Semaphore(limit)
        self._free_ahead = threading.Semaphore(max(1, limit - 1))
        self._idle: list[SftpSession] = []
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    @contextlib.contextmanager
    def borrow(self) -> Generator[SftpSession]:
        """A connection that stands, made now if need be."""
        with contextlib.nullcontext() if is_blocking.get() else self._free_ahead, self._free:
            session = self._take() or self._connect()
            try:
                yield session
            finally:
                if session.is_usable:
                    self._idle.append(session)
                else:
                    session.close()

    def _take(self) -> SftpSession | None:
        """The one that was used last, since it is the least likely to have been ended by the server."""
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return None
            if session.is_usable:
                return session
            session.close()


def _close_all(sessions: list[SftpSession], process: int) -> None:
    if process == os.getpid():  # a forked child has let go of them
        for session in sessions:
            session.close()


def _exists(session: SftpSession, path: str) -> bool:
    try:
        session.stat(path)
    except SftpStatusError:
        return False
    return True


def _target(session: SftpSession, path: str) -> Attributes:
    """Attributes of the target of a link; those of no file if there is no target."""
    try:
        return session.stat(path)
    except SftpStatusError:
        return Attributes(None, 0, None)


def _make_folders(session: SftpSession, path: str) -> None:
    """Make a folder and those above it; another writer may be doing the same."""
    if path == '/' or _exists(session, path):
        return
    _make_folders(session, posixpath.dirname(path))
    try:
        session.make_folder(path)
    except SftpStatusError:
        if not _exists(session, path):
            raise


def _why_absent(session: SftpSession, path: str) -> str:
    missing = None
    folder = posixpath.dirname(path)
    while folder != '/' and not _exists(session, folder):
        missing, folder = folder, posixpath.dirname(folder)
    return f'the folder {missing} does not exist' if missing else 'its folder exists, but holds no such file'
