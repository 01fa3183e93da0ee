"""SFTP on the loopback interface, by OpenSSH's own server (Debian's package ``openssh-server``).

The user who runs it logs in with a key made for the server. It neither reads nor writes ``~/.ssh``.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import MissingDependencyError
from headrace.storage.protocol import StoreOptions
from headrace.storage.stores.further.sftp import SftpStore, open_sftp_store
from tests.support.servers.process import free_port, quietly, running, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['SftpServer', 'have_sshd', 'sftp_server']

SSHD: Final = '/usr/sbin/sshd'  # sshd must be started by its full path


@dataclass(frozen=True, slots=True)
class SftpServer:
    """A running sshd."""

    port: int
    folder: Path
    """Parent of `new_folder`'s folders. The server offers the whole file system."""
    user: str
    key_file: Path
    """The private key for logging in."""
    known_hosts: Path
    """Holds the server's key for each port of 127.0.0.1 given to `known_at`."""

    def new_folder(self) -> Path:
        """Make an empty folder with a new name."""
        folder = self.folder / secrets.token_hex(6)
        folder.mkdir()
        return folder

    def known_at(self, port: int) -> None:
        """Trust the server's key at another port, such as a proxy's."""
        kind, key = (self.folder.parent / 'host.pub').read_text().split()[:2]
        with open(self.known_hosts, 'a') as out:
            out.write(f'[127.0.0.1]:{port} {kind} {key}\n')

    def url(self, folder: Path | str, *, port: int | None = None) -> str:
        """The URL of a folder."""
        return f'sftp://{self.user}@127.0.0.1:{port or self.port}{folder}'

    def store(self, folder: Path | str, *, port: int | None = None, **options: Any) -> SftpStore:
        """A store of this server, with its key and known hosts."""
        extra = {'key_file': str(self.key_file), 'known_hosts': str(self.known_hosts), **options.pop('extra', {})}
        return open_sftp_store(self.url(folder, port=port), StoreOptions(extra=extra, **options))


def have_sshd() -> bool:
    """Whether OpenSSH's server and key generator are installed."""
    return Path(SSHD).exists() and shutil.which('ssh-keygen') is not None


@contextlib.contextmanager
def sftp_server(*arguments: str) -> Generator[SftpServer]:
    """Run sshd in a separate process.

    Args:
        *arguments: Arguments of its ``internal-sftp``, such as ``-R`` (read-only) or ``-P posix-rename`` (without that
            request). Lines after the first are further configuration.
    """
    if not have_sshd():
        raise MissingDependencyError(
            'sshd is not installed. Run: apt-get install --no-install-recommends openssh-server openssh-client'
        )
    with tempfile.TemporaryDirectory(prefix='sftp-', ignore_cleanup_errors=True) as name:
        home = Path(name)
        for key in ('host', 'user'):
            quietly('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-C', key, '-f', str(home / key))
        shutil.copy(home / 'user.pub', home / 'authorized_keys')
        if not os.geteuid():
            Path('/run/sshd').mkdir(exist_ok=True)  # chroot of sshd's unprivileged part, if sshd is root
        port = free_port()
        settings = {
            'ListenAddress': '127.0.0.1',
            'Port': port,
            'PidFile': 'none',
            'HostKey': home / 'host',
            'AuthorizedKeysFile': home / 'authorized_keys',
            'StrictModes': 'no',  # the keys are in a temporary folder
            'UsePAM': 'no',
            'PasswordAuthentication': 'no',
            'KbdInteractiveAuthentication': 'no',
            'MaxStartups': 100,
            'Subsystem': ' '.join(('sftp internal-sftp', *arguments)),
        }
        (home / 'sshd_config').write_text(''.join(f'{key} {value}\n' for key, value in settings.items()))
        (home / 'known_hosts').touch()
        (home / 'files').mkdir()
        with running([SSHD, '-D', '-e', '-f', str(home / 'sshd_config')]) as process:
            wait_for_port(port, process)
            server = SftpServer(port, home / 'files', getpass.getuser(), home / 'user', home / 'known_hosts')
            server.known_at(port)
            yield server
