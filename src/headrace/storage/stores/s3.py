"""S3 and other services with its protocol, through boto3.

Credentials come from boto3's whole chain: environment, shared files and profiles, SSO, process, web identity, and roles
of containers and instances.

boto3 refreshes them, but not keys in a file that another program renews. headrace reads these
again after a refused request. The server is ``StoreOptions.endpoint_url``, else
``S3_ENDPOINT_URL``, else what boto3 itself resolves (``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, the profile).

``StoreOptions.extra``: ``profile`` (name of a profile), ``addressing_style`` ('auto', 'path', 'virtual') and
``max_pool_connections`` (connections per process).
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, BinaryIO, Final

from headrace.errors import AccessDeniedError, ConfigError, StorageError, import_optional
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.transfer.answer_bounds import bound_botocore, exceeded, items_of
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
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed

METADATA_SERVICE: Final = {'metadata_service_num_attempts': 5, 'metadata_service_timeout': 2}
"""Attempts, and seconds for each, to get a machine's credentials: all processes of a node ask at the same moment."""

WRITTEN: Final = frozenset({'config-file', 'env', 'shared-credentials-file'})
"""Sources of credentials that users write, by botocore's names: it does not know when they expire."""

EXTRA: Final = frozenset({'addressing_style', 'max_pool_connections', 'profile'})

MEANINGS: Final = {
    **dict.fromkeys(
        (
            'AccessDenied',
            'AllAccessDisabled',
            'ExpiredToken',
            'Forbidden',
            'InvalidAccessKeyId',
            'InvalidSecurity',
            'InvalidToken',
            'MissingSecurityHeader',
            'RequestTimeTooSkewed',
            'SignatureDoesNotMatch',
            'TokenRefreshRequired',
            'UnauthorizedAccess',
        ),
        403,
    ),
    **dict.fromkeys(('BandwidthLimitExceeded', 'RequestTimeout', 'SlowDown', 'Throttling', 'ThrottlingException'), 503),
    **dict.fromkeys(('NoSuchKey', 'NotFound'), 404),
    'PreconditionFailed': 412,
}
"""HTTP statuses for S3's error codes; the answer's own status may differ. Answers to HEAD have no codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """Another service with S3's protocol, its own keys and its own URL scheme."""

    scheme: str
    endpoint_url: str  # Where it is, unless `StoreOptions.endpoint_url` names another place.
    region: str  # The region in its signatures, unless `StoreOptions.region` is set.
    access_key_variable: str  # The environment variable that holds the access key.
    secret_key_variable: str


class S3Connection:
    """A client of one process, and the session that it has its credentials from.

    The service gives the endpoint and the keys; without one boto3 finds them. The pool is of connections.
    """

    def __init__(self, url: str, options: StoreOptions, service: S3Service | None, pool: int) -> None:
        import_optional('boto3', f'{url} needs boto3', 's3')
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        self._url, self._options, self._service = url, options, service
        if service:
            endpoint = options.endpoint_url or service.endpoint_url
        else:
            endpoint = options.endpoint_url or os.environ.get('S3_ENDPOINT_URL') or None
        settings: dict[str, Any] = {
            'connect_timeout': options.connect_timeout,
            'read_timeout': options.read_timeout,
            # One attempt per call: `retry.Retry` decides about others.
            'retries': {'total_max_attempts': 1, 'mode': 'standard'},
            'max_pool_connections': pool,
            'tcp_keepalive': True,
        }
        if options.anonymous:
            settings['signature_version'] = UNSIGNED
        if 'addressing_style' in options.extra:
            settings['s3'] = {'addressing_style': options.extra['addressing_style']}
        try:
            self.session = self._new_session()
            custom = endpoint or _configured_endpoint(self.session)
            if custom:
                # Servers other than AWS's may know neither the checksums nor their trailers.
                settings['request_checksum_calculation'] = 'when_required'
                settings['response_checksum_validation'] = 'when_required'
            region = options.region or (service and service.region) or self.session.region_name
            self.client: Any = self.session.client(
                's3',
                endpoint_url=endpoint,
                region_name=region or ('us-east-1' if custom else None),
                config=Config(**settings),
                **self._keys(),
            )
            bound_botocore(self.client, options.answer_seconds)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f'boto3 made no client for {url}: {error}. Check the endpoint ({endpoint or "the default"}), the '
                f'region ({options.region or "the default"}) and the AWS profile.'
            ) from error

    @property
    def server(self) -> str:
        return self.client.meta.endpoint_url

    @property
    def credentials(self) -> str:
        """Which credentials the requests are signed with, without saying what they are."""
        if self._options.anonymous:
            return ANONYMOUS
        if self._service:
            return f'the keys in {self._service.access_key_variable} and {self._service.secret_key_variable}'
        credentials = None
        with contextlib.suppress(Exception):
            credentials = self.session.get_credentials()
        return f'credentials from {credentials.method!r}' if credentials is not None else 'no credentials'

    def has_newer_credentials(self) -> bool:
        """Whether boto3 would find others now than those that it read from a variable or a file.

        A client reads these once, and keeps them after they have expired. It renews credentials of most other sources.
        A role that is assumed with keys of a file is not renewed after these expire. Some sources give new
        credentials to each caller.
        """
        if self._options.anonymous or self._service:
            return False
        with contextlib.suppress(Exception):
            held = self.session.get_credentials()
            if held is not None and held.method in WRITTEN:
                newer = self._new_session().get_credentials()
                return newer is not None and newer.get_frozen_credentials() != held.get_frozen_credentials()
        return False

    def _new_session(self) -> Any:
        from boto3.session import Session
        from botocore.session import Session as CoreSession

        core = CoreSession()
        if profile := self._options.extra.get('profile'):
            core.set_config_variable('profile', profile)
        for name, value in METADATA_SERVICE.items():
            if core.get_config_variable(name) == 1:  # botocore's own default
                core.set_config_variable(name, value)
        loader = _descriptions(core.get_config_variable('data_path'))
        core.register_component('data_loader', loader)
        session = Session(botocore_session=core, profile_name=profile, region_name=self._options.region)
        loader.search_paths[:] = dict.fromkeys(loader.search_paths)  # each session adds boto3's
        return session

    def _keys(self) -> dict[str, Any]:
        """The keys of a service, which are read where they are used: none is kept, printed or pickled."""
        if not self._service or self._options.anonymous:
            return {}
        names = self._service.access_key_variable, self._service.secret_key_variable
        keys = [os.environ.get(name, '') for name in names]
        if not all(keys):
            raise AccessDeniedError(
                f'{self._url} needs the environment variables {names[0]} and {names[1]}; they are not both set. Set '
                f'them in each process that reads it.'
            )
        return {'aws_access_key_id': keys[0], 'aws_secret_access_key': keys[1]}


class _Connections:
    """The connections of one process. Stores with the same settings share one, such as the streams of a mixture."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: weakref.WeakValueDictionary[object, S3Connection] = weakref.WeakValueDictionary()

    def of(self, url: str, options: StoreOptions, service: S3Service | None, pool: int) -> S3Connection:
        """The connection of a store; arguments as `S3Connection`'s."""
        # Variables are read when a client is made: a store that is opened after they have changed gets its own.
        of_service = (service.access_key_variable, service.secret_key_variable) if service else ()
        variables = [name for name in list(os.environ) if name.startswith(('AWS_', 'S3_')) or name in of_service]
        environment = hash(frozenset((name, os.environ.get(name)) for name in variables))
        extra = tuple(sorted((name, repr(value)) for name, value in options.extra.items()))
        plain = tuple(getattr(options, each.name) for each in fields(options) if each.name != 'extra')
        key = plain, extra, service, pool, environment
        with self._lock:
            connection = self._shared.get(key)
            if connection is None:
                connection = self._shared[key] = S3Connection(url, options, service, pool)
            return connection

    def forget(self, connection: S3Connection) -> None:
        """Let the next store that needs such a connection make one."""
        with self._lock:
            for key, shared in list(self._shared.items()):
                if shared is connection:
                    del self._shared[key]


connections: Final = PerProcess(_Connections)  # This process' own.


@functools.cache
def _descriptions(path: str | None) -> Any:
    """Botocore's descriptions of services. To read them takes most of the time of making a client.

    All clients of a process share them, such as those of the streams of a mixture.
    """
    from botocore.loaders import create_loader

    return create_loader(path)


def _configured_endpoint(session: Any) -> str | None:
    """The endpoint that boto3 will resolve from its own variables or profile, if any."""
    for name in ('AWS_ENDPOINT_URL_S3', 'AWS_ENDPOINT_URL'):
        if os.environ.get(name):
            return os.environ[name]
    profile = session._session.get_scoped_config() if session.profile_name in session.available_profiles else {}
    return profile.get('endpoint_url') or ('services' if profile.get('services') else None)


def open_s3_store(url: str, options: StoreOptions) -> S3Store:
    _, rest = split_url(url)
    bucket, _, prefix = rest.partition('/')
    if not bucket:
        raise ConfigError(f'An S3 URL names a bucket, as in s3://bucket/prefix; got {url!r}. Add the bucket.')
    return S3Store(bucket, prefix, options)


@sealed
class S3Store(BucketStore):
    """Objects of one bucket, below a prefix. The client is made at the first request of each process."""

    def __init__(
        self,
        bucket: str,
        prefix: str = '',
        options: StoreOptions | None = None,
        *,
        service: S3Service | None = None,
    ) -> None:
        """A service takes its endpoint and keys from nowhere else: S3's own variables and profiles do not count."""
        self.bucket = bucket
        super().__init__(prefix, options, extra=EXTRA, title='an S3 store')
        self.service = service

    @property
    def url(self) -> str:
        scheme = self.service.scheme if self.service else 's3'
        return f'{scheme}://{self.bucket}/{self.prefix}'.rstrip('/')

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        where = {'Bucket': self.bucket, 'Key': name, **self._payer()}
        if wanted.range:
            where['Range'] = wanted.range
        if wanted.etag:
            where['IfMatch'] = f'"{wanted.etag}"'
        try:
            answer = self._ask('Reading', self._key(name), lambda client: client.get_object(**where))
        except _NothingThereError:
            return None
        is_part, body = answer['ResponseMetadata']['HTTPStatusCode'] == 206, answer['Body']
        return Body(
            lambda: body.read(CHUNK),
            body.close,
            version(answer.get('ETag')),
            answer.get('ContentLength'),
            answer.get('ContentRange', '') if is_part else None,
        )

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        where = self._where(key)
        body = SourcePart(source, size)
        connection = self._connection.get()
        with self._mapped_errors('Writing', key, connection=connection):
            connection.client.put_object(**where, Body=body, ContentLength=size)

    def head(self, key: str) -> ObjectInfo:
        where = self._where(key)
        answer = self._ask('Looking up', key, lambda client: client.head_object(**where))
        info = described(key, f'{self.url}/{key}', answer.get('ContentLength'), answer.get('ETag'))
        return replace(info, version=f'{info.etag} {answer.get("LastModified", "")}')

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        where = {'Bucket': self.bucket, 'Prefix': self._name_prefix(prefix), **self._payer()}
        connection = self._connection.get()
        with self._mapped_errors('Listing', prefix, connection=connection):
            pages = connection.client.get_paginator('list_objects_v2').paginate(**where)
            contents: Iterator[Any] = (page.get('Contents', ()) for page in pages)
            for item in items_of(f'{self.url}/{prefix}', contents, lambda item: item['Key']):
                if not item['Key'].endswith('/'):  # the folders of S3 consoles
                    info = self._key(item['Key']), int(item['Size']), version(item.get('ETag'))
                    yield ObjectInfo(*info)

    def delete(self, key: str) -> None:
        where = self._where(key)
        self._ask('Deleting', key, lambda client: client.delete_object(**where))

    def _where(self, key: str) -> dict[str, Any]:
        return {'Bucket': self.bucket, 'Key': self._name(key), **self._payer()}

    def _payer(self) -> dict[str, str]:
        return {'RequestPayer': 'requester'} if self.options.requester_pays else {}

    def _ask(self, doing: str, key: str, request: Callable[[Any], Any]) -> Any:
        """The answer to a request that a client is given to make.

        One that is refused is made again if its credentials have been renewed.
        """
        connection = self._connection.get()
        try:
            with self._mapped_errors(doing, key, connection=connection):
                return request(connection.client)
        except _RenewedCredentialsError:
            connection = self._connection.get()
            with self._mapped_errors(doing, key, connection=connection):
                return request(connection.client)

    @property
    def _client(self) -> Any:
        return self._connection.get().client

    def _connect(self) -> S3Connection:
        return connections.get().of(self.url, self.options, self.service, self._pool)

    def _forget(self, connection: S3Connection) -> None:
        connections.get().forget(connection)
        self._connection.forget(connection)

    def _has_newer_credentials(self, than: S3Connection) -> bool:
        """Whether the next request is made with others than those of a connection whose request was refused."""
        if self._connection.get() is than:
            if not than.has_newer_credentials():
                return False
            self._forget(than)
        return True

    def _server(self) -> str:
        return self._connection.get().server

    def _network_errors(self) -> tuple[type[Exception], ...]:
        from botocore import exceptions
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError

        of_bodies = exceptions.IncompleteReadError, exceptions.ResponseStreamingError, ResponseParserError, HTTPError
        return exceptions.HTTPClientError, exceptions.ConnectionError, *of_bodies

    def _told(self, error: BaseException) -> str:
        return f'{super()._told(error)}{exceeded(error)}'

    def _explained(self, doing: str, key: str, error: Exception, connection: S3Connection) -> Exception | None:
        from botocore import exceptions

        lacking = exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.SSOError
        expired = exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError, RuntimeError
        if isinstance(error, exceptions.ClientError):
            return self._from_answer(doing, key, error, connection)
        if isinstance(error, (*lacking, *expired)):
            self._forget(connection)  # a client without credentials never looks for some again
            return AccessDeniedError(
                f'{doing} {self.url}/{key} needs credentials, and boto3 found none that work: {error}. Configure one '
                f'of its sources (environment, ~/.aws, a role), or set `anonymous` for a public bucket.'
            )
        if isinstance(error, exceptions.ParamValidationError):
            return ConfigError(f'{doing} {self.url}/{key} is no request that S3 knows: {error}. Check the URL.')
        if isinstance(error, exceptions.FlexibleChecksumError):
            # Raised only after the last byte and without an etag, so the download restarts from zero.
            return BrokenTransferError.at(f'{doing} {self.url}/{key} at {connection.server} broke: {error}.')
        if isinstance(error, exceptions.BotoCoreError) and not isinstance(error, self._network_errors()):
            return StorageError(f'{doing} {self.url}/{key} failed: {type(error).__name__}: {error}.')
        return None

    def _from_answer(self, doing: str, key: str, error: Any, connection: S3Connection) -> Exception:
        code, status = str(error.response.get('Error', {}).get('Code', '')), _status(error)
        what = f'{doing} {self.url}/{key} at {connection.server}: {error}'
        if code == 'NoSuchBucket':
            return not_found(f'{self.url}/{key}', self._absent(key, bucket=False))
        if status == 416:
            return _NothingThereError(f'{what}.')
        meaning = MEANINGS.get(code, status)
        if (meaning in {401, 403} or code == '400') and self._has_newer_credentials(connection):
            return _RenewedCredentialsError(f'{what}. The source of its credentials has others by now.')
        if status in {301, 307, 400} and code in {'PermanentRedirect', 'AuthorizationHeaderMalformed', '301', '400'}:
            return ConfigError(f'{what}. The bucket is in another region or at another endpoint: name it.')
        return error_of_status(
            meaning,
            what,
            url=f'{self.url}/{key}',
            absent=lambda: self._absent(key, bucket=self._bucket_exists()),
            credentials=lambda: connection.credentials,
            remedy='Use credentials that may do this, correct the endpoint, or set `anonymous` or `requester_pays` if '
            'the bucket wants that.',
            retry_after=error.response.get('ResponseMetadata', {}).get('HTTPHeaders', {}).get('retry-after'),
        )

    def _bucket_exists(self) -> bool | None:
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except self._client.exceptions.ClientError as error:
            return False if _status(error) == 404 else None
        except Exception:
            return None
        return True

    def _absent(self, key: str, *, bucket: bool | None) -> str:
        place, name = f'the bucket {self.bucket!r}', f'the key {self._shown(key)!r}'
        places = 'options' if self.service else 'options, S3_ENDPOINT_URL, AWS_ENDPOINT_URL_S3'
        return f'{why_absent(bucket, place, self._server(), name)}. Check the URL and the endpoint ({places}).'


class _NothingThereError(StorageError):
    """A range begins where the object ends, or after that."""


class _RenewedCredentialsError(BrokenTransferError):
    """The request was refused, and may not be if it is made again: with other credentials."""


def _status(error: Any) -> int:
    return int(error.response.get('ResponseMetadata', {}).get('HTTPStatusCode', 0))
