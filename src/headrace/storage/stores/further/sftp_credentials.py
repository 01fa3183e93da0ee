"""Logging in to an SSH server as the user's own ``ssh`` would: ``~/.ssh/config``, known hosts, keys and agent.

It imports paramiko, so `sftp` imports it at the first use only.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import paramiko

from headrace.errors import AccessDeniedError, ConfigError, StorageError
from headrace.storage.protocol import StoreOptions

CONFIG_FILES: Final = ('~/.ssh/config', '/etc/ssh/ssh_config')
KNOWN_HOSTS: Final = '~/.ssh/known_hosts ~/.ssh/known_hosts2'
KNOWN_HOSTS_OF_ALL: Final = '/etc/ssh/ssh_known_hosts'
DEFAULT_KEYS: Final = ('id_rsa', 'id_ecdsa', 'id_ed25519')
WINDOW: Final = 16 << 20  # Bytes that the server may send before some have been read.
KEEP_ALIVE: Final = 30
"""Seconds between signs of life on a connection that waits for its next use: firewalls forget silent ones."""
LOG: Final = 'paramiko.headrace'

_QUIET = logging.NullHandler()


class SftpConnectionError(ConnectionError): ...


@dataclass(frozen=True, slots=True)
class SftpCredentials:
    """The server to log in to, the user and the credentials."""

    host: str  # As the user names it.
    address: str  # Its HostName in ``~/.ssh/config``; the host itself if there is none.
    port: int
    user: str
    key_files: tuple[str, ...]  # Tried first.
    other_keys: bool  # Whether the ssh-agent's keys and the default ones of ``~/.ssh`` are tried too.
    known_hosts: tuple[str, ...]  # Files; those that do not exist hold nothing.
    has_password: bool

    @property
    def server(self) -> str:
        return f'{self.address}:{self.port}'

    def __str__(self) -> str:
        """Which credentials are tried, without saying what they are."""
        tried = [f'the key file {name}' for name in self.key_files]
        if self.other_keys:
            agent = 'SSH_AUTH_SOCK' in os.environ
            tried.append('the keys of the ssh-agent' if agent else 'no ssh-agent (SSH_AUTH_SOCK is not set)')
            tried += [
                f'the key file ~/.ssh/{name}' for name in DEFAULT_KEYS if Path('~/.ssh', name).expanduser().is_file()
            ]
        if self.has_password:
            tried.append('the password of HEADRACE_SFTP_PASSWORD')
        return f'user {self.user!r} and {", ".join(tried) or "no key"}'


def find_credentials(host: str, port: int | None, user: str | None, options: StoreOptions) -> SftpCredentials:
    """Settings of the URL, then the options, the environment and the configuration of OpenSSH."""
    config = _config_of(host)
    for name in ('proxycommand', 'proxyjump'):
        if config.get(name, 'none').lower() != 'none':
            raise ConfigError(
                f'An SFTP store connects to its server directly, but ~/.ssh/config has a {name} for {host!r}: '
                f'{config[name]!r}. Open a tunnel with "ssh -N -L 2222:{config["hostname"]}:{config.get("port", 22)} '
                f'...", and name localhost:2222 in the URL.'
            )
    key_file = options.extra.get('key_file') or os.environ.get('COMPOSER_SFTP_KEY_FILE')
    if key_file:
        key_files = (_existing(key_file, 'key_file', 'COMPOSER_SFTP_KEY_FILE'),)
    else:
        found = (Path(name).expanduser() for name in config.get('identityfile', ()))
        key_files = tuple(str(path) for path in found if path.is_file())  # ssh skips those that are missing, too
    known_hosts = options.extra.get('known_hosts') or os.environ.get('COMPOSER_SFTP_KNOWN_HOSTS_FILE')
    if known_hosts:
        known = (_existing(known_hosts, 'known_hosts', 'COMPOSER_SFTP_KNOWN_HOSTS_FILE'),)
    else:
        names = [
            *config.get('userknownhostsfile', KNOWN_HOSTS).split(),
            *config.get('globalknownhostsfile', KNOWN_HOSTS_OF_ALL).split(),
        ]
        known = tuple(str(Path(name).expanduser()) for name in names)
    return SftpCredentials(
        host=host,
        address=config['hostname'],
        port=port or int(config.get('port', 22)),
        user=user or config.get('user') or getpass.getuser(),
        key_files=key_files,
        other_keys=config.get('identitiesonly', 'no') != 'yes',
        known_hosts=known,
        has_password=bool(os.environ.get('HEADRACE_SFTP_PASSWORD')),
    )


def connect(credentials: SftpCredentials, options: StoreOptions) -> tuple[paramiko.SSHClient, paramiko.Channel]:
    """Connect, check who the server is, authenticate, and open a channel for SFTP."""
    try:
        connection = socket.create_connection((credentials.address, credentials.port), timeout=options.connect_timeout)
    except OSError as error:
        raise SftpConnectionError(f'no connection: {error}') from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, 'TCP_USER_TIMEOUT'):
        # Else a write could wait for a dead network without end: paramiko bounds reads only.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(options.read_timeout * 1000))
    client = paramiko.SSHClient()
    with ExitStack() as undo:
        undo.callback(connection.close)
        undo.callback(client.close)
        for name in credentials.known_hosts:
            with suppress(FileNotFoundError):
                client.load_host_keys(name)
        client.set_missing_host_key_policy(_Refuse(credentials))
        # Failed attempts are told by exceptions. Without a handler, the traces of paramiko's thread would go to stderr.
        logging.getLogger(LOG).addHandler(_QUIET)  # noqa: TID251 - paramiko's
        client.set_log_channel(LOG)
        try:
            _authenticate(client, connection, credentials, options)
            channel = _open_channel(client, credentials, options)
        except StorageError:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            if str(error) == 'No existing session':
                raise SftpConnectionError(f'the handshake took more than {options.connect_timeout:g} s') from error
            raise SftpConnectionError(f'no SSH session: {type(error).__name__}: {error}') from error
        undo.pop_all()
        return client, channel


def _open_channel(client: paramiko.SSHClient, credentials: SftpCredentials, options: StoreOptions) -> paramiko.Channel:
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(KEEP_ALIVE)
    # Against a server that falls silent here, which paramiko would wait for without end.
    watchdog = threading.Timer(options.read_timeout, transport.close)
    try:
        channel = transport.open_session(window_size=WINDOW, timeout=options.read_timeout)
        watchdog.start()
        channel.invoke_subsystem('sftp')
    except paramiko.SSHException as error:
        refused = isinstance(error, paramiko.ChannelException) or str(error) == 'Channel closed.'
        if not refused or not transport.is_active():
            raise
        raise StorageError(
            f'{credentials.server} lets {credentials.user!r} in, but has no SFTP for this user: {error}. Add '
            f'"Subsystem sftp internal-sftp" to its sshd_config.'
        ) from error
    finally:
        watchdog.cancel()
    return channel


def _authenticate(
    client: paramiko.SSHClient, connection: socket.socket, credentials: SftpCredentials, options: StoreOptions
) -> None:
    def transport(sock: Any, **settings: Any) -> paramiko.Transport:
        made = paramiko.Transport(sock, **settings)
        security = made.get_security_options()
        # They cost half of the processor time of the others.
        security.ciphers = sorted(security.ciphers, key=lambda name: 'gcm' not in name)
        known = _kinds_of_key(client, credentials)
        security.key_types = sorted(security.key_types, key=lambda name: name not in known)
        return made

    key_files: Any = list(credentials.key_files)
    try:
        client.connect(
            credentials.address,
            credentials.port,
            credentials.user,
            password=os.environ.get('HEADRACE_SFTP_PASSWORD') or None,
            key_filename=key_files,
            allow_agent=credentials.other_keys,
            look_for_keys=credentials.other_keys,
            sock=connection,
            timeout=options.connect_timeout,
            banner_timeout=options.connect_timeout,
            auth_timeout=options.read_timeout,
            channel_timeout=options.read_timeout,
            transport_factory=transport,
        )
    except paramiko.BadHostKeyException as error:
        raise AccessDeniedError(
            f'{credentials.server} shows another host key ({_fingerprint(error.key)}) than the one that is known '
            f'({_fingerprint(error.expected_key)}): it is another server, or somebody is in between. If the server '
            f'was set up anew, remove the old key: ssh-keygen -R {_name_of_host(credentials)}.'
        ) from error
    except paramiko.SSHException as error:
        made = client.get_transport()
        denied = isinstance(error, paramiko.AuthenticationException) or 'authentication methods' in str(error)
        # A connection that ended meanwhile may have been refused, or broken: only another attempt can tell.
        if denied and made is not None and made.is_active() and 'timeout' not in str(error).lower():
            raise AccessDeniedError(
                f'{credentials.server} refused {credentials}: {error}. Add the public key to its authorized_keys, or '
                f'name the right key (extra option key_file, COMPOSER_SFTP_KEY_FILE, IdentityFile in ~/.ssh/config) or '
                f'user; a key with a passphrase has to be in the ssh-agent.'
            ) from error
        if denied:
            raise SftpConnectionError(f'it ended while {credentials} logged in: {error}') from error
        raise


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Refuses a server whose key is in no file of known hosts."""

    def __init__(self, credentials: SftpCredentials) -> None:
        self._credentials = credentials

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        credentials = self._credentials
        raise AccessDeniedError(
            f'The host key of {credentials.server} is not in {" or ".join(credentials.known_hosts)}, so nothing says '
            f'that it is the right server. It shows {_fingerprint(key)}. If that is so, add it: '
            f'ssh-keyscan -p {credentials.port} {credentials.address} >> {credentials.known_hosts[0]}'
        )


def _fingerprint(key: Any) -> str:
    return f'{key.get_name()} {key.fingerprint}'


def _name_of_host(credentials: SftpCredentials) -> str:
    """As files of known hosts spell it."""
    return credentials.address if credentials.port == 22 else f'[{credentials.address}]:{credentials.port}'


def _kinds_of_key(client: paramiko.SSHClient, credentials: SftpCredentials) -> set[str]:
    """Algorithms that show a key that is known; else the server might show another of its keys."""
    kinds = set(client.get_host_keys().lookup(_name_of_host(credentials)) or ())
    return kinds | {'rsa-sha2-512', 'rsa-sha2-256'} if 'ssh-rsa' in kinds else kinds


def _existing(name: Any, option: str, variable: str) -> str:
    path = Path(str(name)).expanduser()
    if not path.is_file():
        raise ConfigError(
            f'The extra option {option!r} (or {variable}) of an SFTP store names a file; there is none at '
            f'{str(path)!r}. Correct the path.'
        )
    return str(path)


def _config_of(host: str) -> dict[str, Any]:
    config = paramiko.SSHConfig()
    try:
        for path in (Path(name).expanduser() for name in CONFIG_FILES):
            if path.is_file():
                with path.open(encoding='utf-8', errors='surrogateescape') as source:
                    config.parse(source)
        return dict(config.lookup(host))
    except (paramiko.SSHException, ImportError, OSError) as error:
        raise ConfigError(
            f'What {" and ".join(CONFIG_FILES)} say of {host!r} cannot be applied: {error}. Correct them.'
        ) from error
