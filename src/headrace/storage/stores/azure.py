"""Azure Blob Storage and Data Lake Storage Gen2, through azure-storage-blob.

URLs are ``azure://container/path`` and ``azure-dl://filesystem/path``. The account is ``extra['account_name']``, else
``AZURE_ACCOUNT_NAME``, ``AZURE_STORAGE_ACCOUNT`` or ``AZURE_STORAGE_ACCOUNT_NAME``. A URL may name it, too:
``azure://account.blob.core.windows.net/container/path`` or ``azure-dl://account.dfs.core.windows.net/filesystem/path``.
``StoreOptions.endpoint_url`` names the server, else the URL, else ``AZURE_STORAGE_SERVICE_ENDPOINT``. After these comes
the connection string, last the account's server in the public cloud.

Both schemes use the account's Blob endpoint. A Data Lake account has a hierarchical namespace, and serves the same
objects there, with ranges, ETags and conditions. Roles and access lists are the same, and a file appears all at once.
Through the Data Lake API it takes three requests, and readers see each. A Data Lake account differs in two ways:

- Folders are empty blobs that metadata marks. headrace does not count them as objects.
- Listings are in the order of the tree. headrace sorts them by name.

The first of these gives the credentials:

1. ``AZURE_ACCOUNT_ACCESS_KEY``
2. ``AZURE_STORAGE_CONNECTION_STRING``
3. ``AZURE_STORAGE_KEY``
4. ``AZURE_STORAGE_SAS_TOKEN``
5. azure-identity's ``DefaultAzureCredential``: service principal, workload or managed identity, logins of Azure's
   tools. It refreshes its tokens.

The first four are passed over for a URL of another account than the environment names.

``StoreOptions.extra``: ``account_name`` and ``max_pool_connections`` (connections per process). ``region`` and
``requester_pays`` have no meaning here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from headrace.errors import (
    AccessDeniedError,
    ConfigError,
    MissingDependencyError,
    ObjectNotFoundError,
    StorageError,
    import_optional,
)
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.transfer.answer_bounds import bound_session, items_of
from headrace.storage.transfer.http import (
    ANONYMOUS,
    CHUNK,
    ReadRequest,
    SourcePart,
    described,
    error_of_status,
    not_found,
    version,
    why_absent,
)
from headrace.storage.transfer.sealed_errors import sealed

ACCOUNT_VARIABLES: Final = ('AZURE_ACCOUNT_NAME', 'AZURE_STORAGE_ACCOUNT', 'AZURE_STORAGE_ACCOUNT_NAME')
CONNECTION_STRING: Final = 'AZURE_STORAGE_CONNECTION_STRING'
SAS_TOKEN: Final = 'AZURE_STORAGE_SAS_TOKEN'  # noqa: S105 - a variable's name
SECRET_VARIABLES: Final = ('AZURE_ACCOUNT_ACCESS_KEY', CONNECTION_STRING, 'AZURE_STORAGE_KEY', SAS_TOKEN)
ENDPOINT_VARIABLE: Final = 'AZURE_STORAGE_SERVICE_ENDPOINT'
DEFAULT_CREDENTIAL: Final = 'DefaultAzureCredential'
ONE_REQUEST: Final = 1 << 50  # Bytes; more than any blob has. The SDK cuts a download into requests of this size.

EXTRA: Final = frozenset({'account_name', 'max_pool_connections'})

CONTAINER: Final = re.compile(r'\$root|\$web|\$logs|(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*')

FOLDER: Final = 'hdi_isfolder'
"""Metadata of the blobs that stand for the folders of a hierarchical namespace."""

MEANINGS: Final = {
    'ConditionNotMet': 412,
    # Told as a conflict, but waiting does not open an account to the public.
    'PublicAccessNotPermitted': 403,
    'ServerBusy': 503,
}
"""HTTP statuses for error codes whose answers have another status."""


@dataclass(frozen=True, slots=True)
class Account:
    service: Any  # A BlobServiceClient.
    source: str  # Of the credentials: a variable, `DEFAULT_CREDENTIAL` or `ANONYMOUS`.
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
    """Make the client for a store; ``host`` is that in its URL, or ''."""
    import_optional('azure.storage.blob', f'{url} needs azure-storage-blob', 'azure')
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import BlobServiceClient
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
    match = re.search(r'(?:^|;)\s*AccountName=([^;]*)', connection_string, re.IGNORECASE)
    return match[1] if match else ''


def _secret(account: str) -> tuple[str, str]:
    """Where the credentials of this account come from, and the secret if it is one of the environment's."""
    is_of_environment = bool(account) and _account_of_environment() in {'', account}
    for name in SECRET_VARIABLES:
        value = os.environ.get(name, '')
        if name == CONNECTION_STRING:
            if value and _account_of(value) in {'', account}:
                return name, value
        elif value and is_of_environment:
            return name, value
    return DEFAULT_CREDENTIAL, ''


def _credential(url: str, account: str, source: str, secret: str) -> Any:
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
            f"'headrace[azure]', or set one of {', '.join(SECRET_VARIABLES)}."
        ) from error
    return DefaultAzureCredential()


def open_azure_store(url: str, options: StoreOptions) -> AzureStore:
    """The store for ``azure://container/prefix`` or ``azure-dl://filesystem/prefix``, with or without a host before."""
    scheme, rest = split_url(url)
    first, _, after = rest.partition('/')
    host = first if '.' in first else ''  # no container's name has a dot, every host's has
    container, _, prefix = after.partition('/') if host else (first, '', after)
    if not CONTAINER.fullmatch(container):
        raise ConfigError(
            f'An Azure URL is {scheme}://container/prefix or, where it names the account, '
            f'{scheme}://account.blob.core.windows.net/container/prefix; a container has 3 to 63 lower-case letters, '
            f'digits and single hyphens. Got {url!r}: correct it.'
        )
    return AzureStore(container, prefix, options, scheme=scheme, host=host)


class _AnsweredError(Exception):
    """Carries an answer whose body has not been read out of the SDK."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


@sealed
class AzureStore(BucketStore):
    """Blobs of one container, below a prefix. The client is made at the first request of each process."""

    def __init__(
        self,
        container: str,
        prefix: str = '',
        options: StoreOptions | None = None,
        *,
        scheme: str = 'azure',
        host: str = '',
    ) -> None:
        self.container = container
        super().__init__(prefix, options, extra=EXTRA, title='an Azure store')
        self.scheme, self.host = scheme, host

    @property
    def url(self) -> str:
        host = f'{self.host}/' if self.host else ''
        return f'{self.scheme}://{host}{self.container}/{self.prefix}'.rstrip('/')

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        """See `BucketStore._open`.

        The SDK's own downloader keeps whole answers in memory, and repeats those that break off. Its hook for raw
        answers comes before that.
        """
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError

        def take(response: Any) -> None:
            if response.http_response.status_code in {200, 206}:
                raise _AnsweredError(response.http_response)

        how: dict[str, Any] = {'raw_response_hook': take}
        if wanted.range:
            how.update(offset=wanted.offset, length=wanted.size)
        if wanted.etag:
            how.update(etag=f'"{wanted.etag}"', match_condition=MatchConditions.IfNotModified)
        try:
            self._client.get_blob_client(name).download_blob(**how)
        except _AnsweredError as answered:
            answer = answered.response
        except HttpResponseError as error:
            if error.status_code != 416:
                raise
            return None
        else:
            raise AssertionError('the hook above is called for every answer')
        if answer.headers.get(f'x-ms-meta-{FOLDER}') == 'true':
            answer.internal_response.close()
            raise self._is_folder(self._key(name))
        # The body as it is stored, also where its Content-Encoding says that it is compressed.
        body = answer.stream_download(None, decompress=False)
        return Body(
            lambda: next(body, b''),
            answer.internal_response.close,
            version(answer.headers.get('ETag')),
            answer.headers.get('Content-Length'),
            answer.headers.get('Content-Range', '') if answer.status_code == 206 else None,
        )

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        blob = self._blob(key)
        body = SourcePart(source, size)
        with self._mapped_errors('Writing', key):
            blob.upload_blob(body, length=size, overwrite=True)

    def head(self, key: str) -> ObjectInfo:
        blob = self._blob(key)
        with self._mapped_errors('Looking up', key):
            properties = blob.get_blob_properties()
        if (properties.metadata or {}).get(FOLDER) == 'true':
            raise self._is_folder(key)
        return described(key, f'{self.url}/{key}', properties.size, properties.etag)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`. All pages are asked for before the first object is told, for the sake of the order."""
        begin = self._name_prefix(prefix)
        with self._mapped_errors('Listing', prefix):
            pages = self._client.list_blobs(name_starts_with=begin or None, include=['metadata']).by_page()
            infos = [
                ObjectInfo(self._key(blob.name), int(blob.size), version(blob.etag))
                for blob in items_of(f'{self.url}/{prefix}', pages, lambda blob: blob.name)
                if not blob.name.endswith('/') and (blob.metadata or {}).get(FOLDER) != 'true'
            ]
        # The service's order is that of UTF-16, and that of the tree in a hierarchical namespace.
        yield from sorted(infos, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """See `Store.delete`. Snapshots are deleted too; folders stay, in a hierarchical namespace."""
        blob = self._blob(key)
        from azure.core.exceptions import ResourceNotFoundError

        with self._mapped_errors('Deleting', key):
            try:
                blob.delete_blob(delete_snapshots='include')
            except ResourceNotFoundError as error:
                if _code(error) != 'BlobNotFound':
                    raise

    def _blob(self, key: str) -> Any:
        name = self._name(key)
        return self._client.get_blob_client(name)

    @property
    def _client(self) -> Any:
        return self._connection.get()[1]

    def _server(self) -> str:
        return self._connection.get()[0].server

    def _connect(self) -> tuple[Account, Any]:
        account = connect(self.url, self.host, self.options, self._pool)
        return account, account.service.get_container_client(self.container)

    def _network_errors(self) -> tuple[type[Exception], ...]:
        from azure.core import exceptions

        # `HttpResponseError` without a status: the body broke.
        of_azure = exceptions.ServiceRequestError, exceptions.ServiceResponseError, exceptions.HttpResponseError
        return *of_azure, *super()._network_errors()

    def _explained(self, doing: str, key: str, error: Exception, connection: tuple[Account, Any]) -> Exception | None:
        from azure.core import exceptions

        what = f'{doing} {self.url}/{key} at {connection[0].server}'
        if isinstance(error, exceptions.ClientAuthenticationError):
            return self._denied(what, error)
        if isinstance(error, exceptions.HttpResponseError) and error.status_code is not None:
            return self._from_answer(what, key, error)
        if isinstance(error, exceptions.AzureError) and not isinstance(error, self._network_errors()):
            return StorageError(f'{what} failed: {type(error).__name__}: {error}.')
        return None

    def _denied(self, what: str, error: Any) -> StorageError:
        credentials = self._connection.get()[0].credentials
        if error.response is None:
            return AccessDeniedError(
                f'{what} needs credentials, and there are none that work in {credentials()}: '
                f'{str(error.message).rstrip(".")}. Set one '
                f"of {', '.join(SECRET_VARIABLES)}, log in with one of Azure's tools or give the machine an identity, "
                f'or set `anonymous` for a public container.'
            )
        return error_of_status(
            403,
            f'{what}: {_told(error)}',
            url='',
            absent=str,
            credentials=credentials,
            remedy='Use credentials that may do this (the role "Storage Blob Data Reader", or "Storage Blob Data '
            'Contributor" to write: an owner of the account has neither by itself), a SAS token that has not expired '
            'or a key that was not rotated, or set `anonymous` for a public container.',
        )

    def _from_answer(self, what: str, key: str, error: Any) -> StorageError:
        status = MEANINGS.get(_code(error), int(error.status_code))
        if status in {401, 403}:
            return self._denied(what, error)
        return error_of_status(
            status,
            f'{what}: {_told(error)}',
            url=f'{self.url}/{key}',
            absent=lambda: self._absent(key, _code(error)),
            credentials=self._connection.get()[0].credentials,
            remedy='',
            retry_after=error.response.headers.get('Retry-After'),
        )

    def _absent(self, key: str, code: str) -> str:
        kinds = {'BlobNotFound': True, 'ContainerNotFound': False}
        exists = kinds[code] if code in kinds else self._container_exists()
        place, name = f'the container {self.container!r}', f'the blob {self._shown(key)!r}'
        reason = why_absent(exists, place, self._server(), name)
        if exists is None and self.options.anonymous:
            reason += ', or whether the public may read it'
        return f'{reason}. Check the URL, the account and the endpoint.'

    def _container_exists(self) -> bool | None:
        try:
            return bool(self._client.exists())
        except Exception:
            return None

    def _is_folder(self, key: str) -> ObjectNotFoundError:
        return not_found(f'{self.url}/{key}', 'it is a folder. Name a file in it, or list it.')


def _code(error: Any) -> str:
    code = getattr(error, 'error_code', None)
    return str(getattr(code, 'value', code) or '')


def _told(error: Any) -> str:
    """An answer's status, code and first line; the others are numbers, and what was signed."""
    lines = str(error.message).splitlines()
    return ' '.join(
        str(part) for part in (error.status_code, _code(error), lines[0].rstrip('.') if lines else '') if part
    )
