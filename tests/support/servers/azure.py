"""Azure Blob Storage on the loopback interface.

Azurite, Microsoft's emulator, in memory. It verifies keys and SAS tokens; of the tokens of Entra ID it reads issuer,
audience and expiry, on TLS only. It has no hierarchical namespace. It needs node and
``npm install --prefix .servers azurite`` at the root of the repository, or in the folder that ``HEADRACE_SERVERS``
names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError
from headrace.storage.protocol import StoreOptions
from headrace.storage.stores.azure import AzureStore
from tests.support.servers.process import free_port, running, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['INSTALL_AZURITE', 'AzureServer', 'azurite_server', 'find_azurite']

INSTALL_AZURITE = 'npm install --prefix .servers azurite'

ACCOUNT = 'devstoreaccount1'
KEY = 'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=='
"""The key of every emulator, from its documentation."""


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running Azurite."""

    root_url: str
    account: str = ACCOUNT
    key: str = field(default=KEY, repr=False)

    @property
    def endpoint_url(self) -> str:
        """URL of the account's blobs."""
        return f'{self.root_url}/{self.account}'

    @property
    def connection_string(self) -> str:
        """All settings of a client."""
        return f'AccountName={self.account};AccountKey={self.key};BlobEndpoint={self.endpoint_url};'

    def client(self) -> Any:
        """A BlobServiceClient with the account's key, for setting up containers."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient.from_connection_string(self.connection_string)

    def environment(self) -> dict[str, str]:
        """Environment variables for ``azure://`` URLs of this server."""
        return {
            'AZURE_STORAGE_SERVICE_ENDPOINT': self.endpoint_url,
            'AZURE_ACCOUNT_NAME': self.account,
            'AZURE_ACCOUNT_ACCESS_KEY': self.key,
        }

    def new_container(self, **options: Any) -> str:
        """Make a container with a new name."""
        name = f'headrace-{secrets.token_hex(6)}'
        self.client().create_container(name, **options)
        return name

    def store(self, container: str, prefix: str = '', *, scheme: str = 'azure', **options: Any) -> AzureStore:
        """A store of this server; the credentials are taken from the environment."""
        endpoint = options.pop('endpoint_url', self.endpoint_url)
        return AzureStore(container, prefix, StoreOptions(endpoint_url=endpoint, **options), scheme=scheme)


def find_azurite() -> str | None:
    """The path of the program."""
    folders = [Path(__file__).parents[3] / '.servers']
    if os.environ.get('HEADRACE_SERVERS'):
        folders.insert(0, Path(os.environ['HEADRACE_SERVERS']))
    path = os.pathsep.join([*(str(folder / 'node_modules' / '.bin') for folder in folders), os.environ.get('PATH', '')])
    return shutil.which('azurite-blob', path=path)


@contextlib.contextmanager
def azurite_server(*, certificate: Path | None = None, key: Path | None = None) -> Generator[AzureServer]:
    """Run Azurite in a separate process.

    Args:
        certificate: A PEM file; the server then speaks TLS, and takes tokens of Entra ID.
        key: The certificate's, a PEM file.
    """
    program = find_azurite()
    if program is None:
        raise MissingDependencyError(f'Azurite is not installed. Run: {INSTALL_AZURITE}')
    port = free_port()
    command = [program, '--blobHost', '127.0.0.1', '--blobPort', str(port), '--silent', '--disableTelemetry']
    command += ['--inMemoryPersistence', '--extentMemoryLimit', '4096']
    # The SDK is newer than the emulator.
    command += ['--skipApiVersionCheck']
    if certificate:
        command += ['--cert', str(certificate), '--key', str(key), '--oauth', 'basic']
    with running(command) as process:
        wait_for_port(port, process)
        yield AzureServer(f'{"https" if certificate else "http"}://127.0.0.1:{port}')
