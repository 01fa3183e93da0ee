"""Google Cloud Storage, through google-cloud-storage, or with HMAC keys through the protocol of S3.

The first of these gives the credentials:

1. ``StoreOptions.anonymous``: none.
2. The file ``service_account_file``.
3. HMAC keys in the environment variables ``GCS_KEY`` and ``GCS_SECRET``, through boto3.
4. ``STORAGE_EMULATOR_HOST`` as the server: none.
5. Application Default Credentials: ``GOOGLE_APPLICATION_CREDENTIALS`` (service account, user, workload identity
   federation), the file of ``gcloud auth application-default login``, the metadata server of Google's machines.

google-auth refreshes credentials.

The server is ``StoreOptions.endpoint_url``, else ``STORAGE_EMULATOR_HOST``, else Google's. A version (etag) is the
object's generation. ``StoreOptions.requester_pays`` bills the project of ``extra``, else ``GOOGLE_CLOUD_PROJECT``, else
that of the credentials.

``StoreOptions.extra``: ``project`` (whom requests are billed to), ``service_account_file`` (path of a service account's
key) and ``max_pool_connections`` (connections per process). With HMAC keys,
see `headrace.storage.stores.s3`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, import_optional
from headrace.storage.protocol import ObjectInfo, Store, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.stores.s3 import S3Service, S3Store
from headrace.storage.transfer.answer_bounds import bound_session, items_of
from headrace.storage.transfer.http import (
    ANONYMOUS,
    CHUNK,
    ReadRequest,
    SourcePart,
    described,
    error_of_status,
    proxy_note,
    why_absent,
)
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed

SCOPE: Final = 'https://www.googleapis.com/auth/devstorage.read_write'

UPLOAD_PART: Final = 32 << 20

EXTRA: Final = frozenset({'max_pool_connections', 'project', 'service_account_file'})

HMAC: Final = S3Service(
    scheme='gs',
    endpoint_url='https://storage.googleapis.com',
    region='auto',
    access_key_variable='GCS_KEY',
    secret_key_variable='GCS_SECRET',  # noqa: S106 - the name of a variable
)


class Connection(NamedTuple):
    client: Any
    session: Any  # Of the same credentials: the client hides the answers that bodies are read from.
    credentials: Any
    payer: str | None  # The project that is billed, if it is not the bucket's own.


def connect(url: str, options: StoreOptions, connections: int) -> Connection:
    """Make the client for a store, with at most `connections` open."""
    import_optional('google.cloud.storage', f'{url} needs google-cloud-storage', 'gcs')
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    emulator = os.environ.get('STORAGE_EMULATOR_HOST')
    if emulator and '://' not in emulator:
        emulator = f'http://{emulator}'
    endpoint = options.endpoint_url or emulator
    try:
        credentials, project = _find(options, emulated=bool(emulator) and not options.endpoint_url)
    except GoogleAuthError as error:
        raise AccessDeniedError(
            f'{url} needs credentials, and google-auth found none that work: {error} Run "gcloud auth '
            f'application-default login", set GOOGLE_APPLICATION_CREDENTIALS, or GCS_KEY and GCS_SECRET, or set '
            f'`anonymous` for a public bucket.'
        ) from error
    payer = None
    if options.requester_pays:
        payer = options.extra.get('project') or os.environ.get('GOOGLE_CLOUD_PROJECT') or project
        if not payer:
            raise ConfigError(
                f'Somebody pays for requests: `requester_pays` is set for {url}, but no project. Name it in '
                f'GOOGLE_CLOUD_PROJECT or as `project` in the extra options.'
            )
    try:
        settings = {'api_endpoint': endpoint.rstrip('/')} if endpoint else None
        client = Client(project=None, credentials=credentials, client_options=settings)
    except ValueError as error:
        raise ConfigError(
            f'google-cloud-storage made no client for {url}: {error} Check the endpoint '
            f'({endpoint or "the default"}) and the credentials ({describe(credentials, options)}).'
        ) from error
    session = AuthorizedSession(credentials)
    session.mount(f'{client.api_endpoint}/', HTTPAdapter(pool_maxsize=connections))
    for bounded in (session, client._http):
        bound_session(bounded, options.answer_seconds)
    return Connection(client, session, credentials, None if payer is None else str(payer))


def _find(options: StoreOptions, *, emulated: bool) -> tuple[Any, str | None]:
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.oauth2.service_account import Credentials

    if options.anonymous:
        return AnonymousCredentials(), None
    path = options.extra.get('service_account_file')
    if path is not None:
        try:
            credentials = Credentials.from_service_account_file(str(path), scopes=[SCOPE])
        except (OSError, ValueError) as error:
            raise ConfigError(
                f'`service_account_file` names the JSON key of a service account; got {path!r}: {error} Correct '
                f'the path, or set GOOGLE_APPLICATION_CREDENTIALS for other kinds of credentials.'
            ) from error
        return credentials, credentials.project_id
    if emulated:
        return AnonymousCredentials(), None
    return google.auth.default(scopes=[SCOPE])


def describe(credentials: Any, options: StoreOptions) -> str:
    """Which credentials these are, without saying what they are."""
    from google.auth.credentials import AnonymousCredentials

    if isinstance(credentials, AnonymousCredentials):
        return ANONYMOUS
    path = options.extra.get('service_account_file')
    origin = '' if path is None else f' of {path} (`service_account_file`)'
    # Newer versions of google-auth know where they found what they found.
    info = credentials.get_cred_info() if hasattr(credentials, 'get_cred_info') else None
    if info:
        who = f' of {info["principal"]}' if info.get('principal') else ''
        return f'{info["credential_type"]}{who} from {info["credential_source"]}{origin}'
    who = getattr(credentials, 'service_account_email', '')
    kind = f'{type(credentials).__module__}.{type(credentials).__name__}'
    return f'credentials ({kind}' + (f', {who})' if who else ')') + origin


def open_gcs_store(url: str, options: StoreOptions) -> Store:
    """The store for ``gs://bucket/prefix``: an `S3Store` if there are HMAC keys and nothing speaks against them."""
    _, rest = split_url(url)
    bucket, _, prefix = rest.partition('/')
    if not bucket:
        raise ConfigError(f'A GCS URL names a bucket, as in gs://bucket/prefix; got {url!r}. Add the bucket.')
    has_keys = os.environ.get(HMAC.access_key_variable) and os.environ.get(HMAC.secret_key_variable)
    if not has_keys or options.anonymous or 'service_account_file' in options.extra:
        return GCSStore(bucket, prefix, options)
    if options.requester_pays:
        raise ConfigError(
            f'With HMAC keys GCS bills nobody but the owner of a bucket; got `requester_pays` for {url!r}, and '
            f'GCS_KEY and GCS_SECRET are set. Unset them, so that Application Default Credentials are used.'
        )
    return S3Store(bucket, prefix, options, service=HMAC)


@sealed
class GCSStore(BucketStore):
    """Objects of one bucket, below a prefix. The client is made at the first request of each process."""

    def __init__(self, bucket: str, prefix: str = '', options: StoreOptions | None = None) -> None:
        self.bucket = bucket
        super().__init__(prefix, options, extra=EXTRA, title='a GCS store')

    @property
    def url(self) -> str:
        return f'gs://{self.bucket}/{self.prefix}'.rstrip('/')

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        # Encoded objects are read as they are stored.
        headers = {'Accept-Encoding': 'gzip'}
        if wanted.range:
            headers['Range'] = wanted.range
        connection, parameters = self._connection.get(), {'alt': 'media'}
        if wanted.etag:
            parameters['ifGenerationMatch'] = wanted.etag
        if connection.payer:
            parameters['userProject'] = connection.payer
        answer = connection.session.get(
            f'{self._server()}/download/storage/v1/b/{quote(self.bucket, safe="")}/o/{quote(name, safe="")}',
            params=parameters,
            headers=headers,
            stream=True,
            timeout=self._timeout,
        )
        with contextlib.ExitStack() as stack:
            stack.callback(answer.close)
            if answer.status_code == 416:
                return None
            if answer.status_code not in {200, 206}:
                raise self._from_answer('Reading', self._key(name), answer, answer.text)
            generation = answer.headers.get('x-goog-generation', '')
            part = answer.headers.get('Content-Range', '') if answer.status_code == 206 else None
            if not generation and (wanted.etag or part is not None):  # emulators may say none, and ignore the condition
                generation = self.head(self._key(name)).etag
            stack.pop_all()
        length = answer.headers.get('Content-Length')
        return Body(lambda: answer.raw.read(CHUNK, decode_content=False), answer.close, generation, length, part)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        name = self._name(key)
        body = SourcePart(source, size)
        with self._mapped_errors('Writing', key):
            # Objects of more than 8 MiB go up in parts, each in memory; readers see the object after the last part.
            blob = self._bucket().blob(name, chunk_size=UPLOAD_PART)
            blob.upload_from_file(body, size=size, checksum='crc32c', retry=None, timeout=self._timeout)

    def head(self, key: str) -> ObjectInfo:
        name = self._name(key)
        with self._mapped_errors('Looking up', key):
            blob = self._bucket().blob(name)
            blob.reload(retry=None, timeout=self._timeout)
            return described(key, f'{self.url}/{key}', blob.size, blob.generation)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        where = self._name_prefix(prefix)
        with self._mapped_errors('Listing', prefix):
            blobs = self._connection.get().client.list_blobs(
                self._bucket(),
                prefix=where,
                fields='items(name,size,generation),nextPageToken',
                retry=None,
                timeout=self._timeout,
            )
            for blob in items_of(f'{self.url}/{prefix}', blobs.pages, lambda blob: blob.name):
                if not blob.name.endswith('/'):  # the folders of consoles
                    yield ObjectInfo(self._key(blob.name), int(blob.size), str(blob.generation or ''))

    def delete(self, key: str) -> None:
        name = self._name(key)
        with contextlib.suppress(ObjectNotFoundError), self._mapped_errors('Deleting', key):
            self._bucket().blob(name).delete(retry=None, timeout=self._timeout)

    def _bucket(self) -> Any:
        connection = self._connection.get()
        return connection.client.bucket(self.bucket, user_project=connection.payer)

    @property
    def _timeout(self) -> tuple[float, float]:
        return self.options.connect_timeout, self.options.read_timeout

    def _connect(self) -> Connection:
        return connect(self.url, self.options, self._pool)

    def _server(self) -> str:
        return self._connection.get().client.api_endpoint

    def _credentials(self) -> str:
        return describe(self._connection.get().credentials, self.options)

    def _network_errors(self) -> tuple[type[Exception], ...]:
        return *super()._network_errors(), _corruption()

    def _explained(self, doing: str, key: str, error: Exception, connection: Connection) -> Exception | None:
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth import exceptions as auth
        from requests.exceptions import InvalidURL, MissingSchema

        what = f'{doing} {self.url}/{key}'
        credentials = describe(connection.credentials, self.options)
        if isinstance(error, GoogleAPICallError):
            return self._from_answer(doing, key, error.response, error.message, status=error.code or 0)
        if isinstance(error, auth.GoogleAuthError):
            if isinstance(error, auth.TransportError) or error.retryable:
                return BrokenTransferError.at(f'{what} broke while {credentials} was renewed: {error}.')
            return AccessDeniedError(
                f'{what} at {self._server()} was refused. The request was made with {credentials}, which '
                f'could not be renewed: {error}. Use credentials that may do this, or correct the endpoint.'
            )
        if isinstance(error, (InvalidURL, MissingSchema)):
            of_endpoint = (
                ' An endpoint is a URL such as https://storage.googleapis.com; correct it (options, '
                'STORAGE_EMULATOR_HOST).'
            )
            return ConfigError(f'{what}: {str(error).rstrip(".")}.{proxy_note(self._server()) or of_endpoint}')
        return None

    def _from_answer(self, doing: str, key: str, answer: Any, text: str, *, status: int = 0) -> Exception:
        def absent() -> str:
            exists = None
            if doing != 'Deleting':  # a missing bucket holds no such object either
                exists = False if doing == 'Listing' or 'bucket does not exist' in text else self._bucket_exists()
            place, name = f'the bucket {self.bucket!r}', f'the object {self._shown(key)!r}'
            reason = why_absent(exists, place, self._server(), name)
            return f'{reason}. Check the URL and the endpoint (options, STORAGE_EMULATOR_HOST).'

        status = status or answer.status_code
        return error_of_status(
            status,
            f'{doing} {self.url}/{key} at {self._server()}: {status} {text.strip()[:500]}'.rstrip('. '),
            url=f'{self.url}/{key}',
            absent=absent,
            credentials=self._credentials,
            remedy='Use credentials that may do this (without the right to list a bucket, objects that do not exist '
            'are refused, too), correct the endpoint, or set `anonymous` or `requester_pays` if the bucket wants that.',
            retry_after=answer.headers.get('Retry-After') if answer is not None else None,
        )

    def _bucket_exists(self) -> bool | None:
        """Whether the bucket is there; None if it does not say. Listing needs less of a right than looking it up."""
        from google.api_core.exceptions import NotFound

        try:
            client = self._connection.get().client
            next(iter(client.list_blobs(self._bucket(), max_results=1, retry=None, timeout=self._timeout)), None)
        except NotFound:
            return False
        except Exception:
            return None
        return True


def _corruption() -> type[Exception]:
    try:
        from google.cloud.storage.exceptions import DataCorruption
    except ImportError:  # before its 3.0
        from google.resumable_media import DataCorruption
    return DataCorruption
