"""The Azure storage account of a URL, its server and its credentials."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.errors import ConfigError, MissingDependencyError
from headrace.storage.transfer.answer_bounds import bound_session
from headrace.storage.transfer.http_body import CHUNK
from headrace.storage.transfer.http_errors import ANONYMOUS

if TYPE_CHECKING:
    from headrace.storage.protocol import StoreOptions

__all__ = ['SECRET_VARIABLES', 'Account', 'connect']

ACCOUNT_VARIABLES: Final = ('AZURE_ACCOUNT_NAME', 'AZURE_STORAGE_ACCOUNT', 'AZURE_STORAGE_ACCOUNT_NAME')
CONNECTION_STRING: Final = 'AZURE_STORAGE_CONNECTION_STRING'
SAS_TOKEN: Final = 'AZURE_STORAGE_SAS_TOKEN'  # noqa: S105 - a variable's name
SECRET_VARIABLES: Final = ('AZURE_ACCOUNT_ACCESS_KEY', CONNECTION_STRING, 'AZURE_STORAGE_KEY', SAS_TOKEN)
ENDPOINT_VARIABLE: Final = 'AZURE_STORAGE_SERVICE_ENDPOINT'
DEFAULT_CREDENTIAL: Final = 'DefaultAzureCredential'
ONE_REQUEST: Final = 1 << 50
"""Bytes; more than any blob has. The SDK cuts a download into requests of this size."""


@dataclass(frozen=True, slots=True)
class Account:
    """A connection to a storage account."""

    service: Any
    """A BlobServiceClient."""
    source: str
    """Of the credentials: a variable, `DEFAULT_CREDENTIAL` or `ANONYMOUS`."""
    credential: Any = field(repr=False)

    @property
    def server(self) -> str:
        """Where the requests go, for messages; the SDK's own URLs end in the SAS token."""
        return f'{self.service.scheme}://{self.service.primary_hostname}'

    def credentials(self) -> str:
        """Which credentials the requests are made with, without saying what they are."""
        if self.source == ANONYMOUS:
            return ANONYMOUS
        # Of the chain's members, the one that gave a token.
        used = getattr(self.credential, '_successful_credential', None)
        return f'credentials from {self.source}' + (f' ({type(used).__name__})' if used else '')


def connect(url: str, host: str, options: StoreOptions, connections: int) -> Account:
    """Make the client for a store.

    Args:
        url: The store's, for messages.
        host: The host in the URL, before the container, or ''.
        options: Of the store.
        connections: Kept open at most.

    Raises:
        ConfigError: No account is named, or the SDK refuses what was found.
        MissingDependencyError: A package of the extra ``azure`` is not installed.
    """
    try:
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import BlobServiceClient
    except ImportError as error:
        raise MissingDependencyError(
            f'{url} needs azure-storage-blob, which is not installed. Run: pip install "headrace[azure]"'
        ) from error
    from requests import Session
    from requests.adapters import HTTPAdapter

    session = Session()
    for protocol in ('https://', 'http://'):
        session.mount(protocol, HTTPAdapter(pool_maxsize=connections))
    bound_session(session, options.answer_seconds)
    settings: dict[str, Any] = {
        # One attempt per call: `retry.Retry` decides about others.
        'retry_total': 0,
        'transport': RequestsTransport(
            session=session,
            connection_timeout=options.connect_timeout,
            read_timeout=options.read_timeout,
            connection_data_block_size=CHUNK,
        ),
        'max_single_get_size': ONE_REQUEST,
        'max_block_size': 16 << 20,
        'use_byte_buffer': True,
    }
    # A Data Lake account serves its files at its Blob endpoint too.
    endpoint = options.endpoint_url or (f'https://{host.replace(".dfs.", ".blob.", 1)}' if host else '')
    endpoint = endpoint or os.environ.get(ENDPOINT_VARIABLE, '')
    name = _account_name(url, host, endpoint, options)
    source, secret = (ANONYMOUS, '') if options.anonymous else _secret(name)
    try:
        if source == CONNECTION_STRING:
            # Of two endpoints the last one holds.
            text = secret.rstrip(';') + (f';BlobEndpoint={endpoint}' if endpoint else '')
            return Account(BlobServiceClient.from_connection_string(text, **settings), source, None)
        credential = _credential(url, name, source, secret)
        endpoint = endpoint or f'https://{name}.blob.core.windows.net'
        return Account(BlobServiceClient(endpoint, credential=credential, **settings), source, credential)
    except ValueError as error:
        raise ConfigError(
            f'azure-storage-blob made no client for {url}: {error} Check the endpoint '
            f'({endpoint or "the default"}) and the credentials ({source}).'
        ) from error


def _account_name(url: str, host: str, endpoint: str, options: StoreOptions) -> str:
    """The account; empty where only a connection string knows it."""
    if host:
        return host.partition('.')[0]
    if name := str(options.extra.get('account_name', '')) or _account_of_environment():
        return name
    text = os.environ.get(CONNECTION_STRING, '')
    if text and not options.anonymous:
        return _account_of(text)
    if endpoint:
        # https://account.blob.core.windows.net, or http://127.0.0.1:10000/account of an emulator
        parts = urlsplit(endpoint)
        return parts.path.strip('/') or (parts.hostname or '').partition('.')[0]
    scheme, _, rest = url.partition('://')
    raise ConfigError(
        f'The storage account of {url} is not known. Set AZURE_ACCOUNT_NAME or extra["account_name"], or name it in '
        f'the URL: {scheme}://account.blob.core.windows.net/{rest}'
    )


def _account_of_environment() -> str:
    return next((os.environ[name] for name in ACCOUNT_VARIABLES if os.environ.get(name)), '')


def _account_of(connection_string: str) -> str:
    found = re.search(r'(?:^|;)\s*AccountName=([^;]*)', connection_string, re.IGNORECASE)
    return found[1] if found else ''


def _secret(account: str) -> tuple[str, str]:
    """Where the credentials of this account come from, and the secret if it is one of the environment's."""
    own = bool(account) and _account_of_environment() in {'', account}
    for name in SECRET_VARIABLES:
        value = os.environ.get(name, '')
        if name == CONNECTION_STRING:
            if value and _account_of(value) in {'', account}:
                return name, value
        elif value and own:
            return name, value
    return DEFAULT_CREDENTIAL, ''


def _credential(url: str, account: str, source: str, secret: str) -> Any:
    """The credential that azure-storage-blob signs requests with."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if source == ANONYMOUS:
        return None
    if source == SAS_TOKEN:
        return AzureSasCredential(secret.lstrip('?'))
    if source != DEFAULT_CREDENTIAL:
        return AzureNamedKeyCredential(account, secret)
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise MissingDependencyError(
            f'{url} needs azure-identity, which is not installed, as no key is given. Run: pip install '
            f'"headrace[azure]", or set one of {", ".join(SECRET_VARIABLES)}.'
        ) from error
    return DefaultAzureCredential()
