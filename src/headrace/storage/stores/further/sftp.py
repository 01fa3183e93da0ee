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

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from headrace.errors import ConfigError, StorageError, import_optional
from headrace.storage.protocol import StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.further.fsspec import Connection, FsspecStore
from headrace.storage.transfer.sealed_errors import sealed

EXTRA: Final = frozenset({'key_file', 'known_hosts', 'max_connections'})


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
class SftpStore(FsspecStore):
    """Regular files below a folder of an SSH server. Connections are made when they are needed, in each process."""

    BLOCK: ClassVar[int] = 1 << 18  # a read costs nothing

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
        host = f'[{host}]' if ':' in host else host
        server = f'sftp://{f"{user}@" if user else ""}{host}{f":{port}" if port else ""}'
        self.root = f'/{root.strip("/")}'
        super().__init__(server + self.root, options, extra=EXTRA, title='an SFTP store')

    @property
    def url(self) -> str:
        return self._url if self.root != '/' else f'{self._url}/'

    def _maker(self) -> tuple[Callable[[], Any], str]:
        login = self._login()
        from headrace.storage.stores.further.sftp_files import SftpFiles

        make = partial(SftpFiles, self.host, credentials=login, options=self.options, skip_instance_cache=True)
        return make, self.root

    def _login(self) -> Any:
        import_optional('paramiko', f'{self.url} needs paramiko', 'sftp')
        from headrace.storage.stores.further.sftp_credentials import find_credentials

        return find_credentials(self.host, self.port, self.user, self.options)

    def _replace(self, connection: Connection, temporary: str, path: str, size: int) -> None:  # noqa: ARG002
        files, call = connection.files, connection.call
        try:
            call(files.mv, temporary, path)
        except OSError as error:
            if call(files.exists, path):  # a server without that extension of the protocol, or one that forbids it
                raise StorageError(
                    f'{path} exists at {self._server()}, which cannot replace a file at once (it lacks '
                    f'posix-rename@openssh.com). Delete the object first.'
                ) from error
            call(files.ftp.rename, temporary, path)

    def _server(self) -> str:
        return self._login().server

    def _credentials(self) -> str:
        return str(self._login())

    def _network_errors(self) -> tuple[type[Exception], ...]:
        from paramiko import SSHException

        return EOFError, SSHException

    def _told(self, error: BaseException) -> str:
        return str(error) if type(error).__name__ == 'SftpConnectionError' else super()._told(error)
