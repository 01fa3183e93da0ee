"""S3 and whatever speaks its protocol, through boto3.

Credentials are boto3's whole chain: environment, shared files and profiles, SSO, process, container and instance
roles, and web identity; what expires is refreshed by it. The server is ``StoreOptions.endpoint_url``, else
``S3_ENDPOINT_URL``, else what boto3 itself resolves (``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, the profile).

``StoreOptions.extra``: ``profile`` (name of a profile), ``addressing_style`` ('auto', 'path', 'virtual') and
``max_pool_connections`` (connections per process).
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import (
    AccessDeniedError,
    ConfigError,
    MissingDependencyError,
    StorageError,
)
from headrace.storage.answers import ANONYMOUS, error_of_status, not_found, why_absent
from headrace.storage.body import CHUNK, SourcePart, nothing_left, range_header, receive
from headrace.storage.per_process import PerProcess
from headrace.storage.protocol import Names, ObjectInfo, StoreOptions, check_extra, count_option
from headrace.storage.resolve import split_url
from headrace.storage.retry import BrokenTransferError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import BinaryIO

__all__ = ['S3Service', 'S3Store', 'open_s3_store']

EXTRA: Final = frozenset({'addressing_style', 'max_pool_connections', 'profile'})

METADATA_SERVICE: Final = {'metadata_service_num_attempts': 5, 'metadata_service_timeout': 2}
"""Attempts, and seconds for each, to get a machine's credentials: all processes of a node ask at the same moment."""
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
"""What S3's error codes mean as a status of HTTP, where the answer's own may be another. HEAD has no codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """A service that speaks S3's protocol to users of its own keys, under a URL scheme of its own."""

    scheme: str
    endpoint_url: str
    """Where it is, unless `StoreOptions.endpoint_url` names another place."""
    region: str
    """What its signatures name, unless `StoreOptions.region` does."""
    access_key_variable: str
    """The environment variable that holds the access key."""
    secret_key_variable: str


def open_s3_store(url: str, options: StoreOptions) -> S3Store:
    """The store for ``s3://bucket/prefix``."""
    _, rest = split_url(url)
    bucket, _, prefix = rest.partition('/')
    if not bucket:
        raise ConfigError(f'An S3 URL names a bucket, as in s3://bucket/prefix; got {url!r}. Add the bucket.')
    return S3Store(bucket, prefix, options)


class S3Store:
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
        self._names = Names(prefix)
        self.prefix = self._names.prefix
        self.options = options or StoreOptions()
        self.service = service
        check_extra(self.options, EXTRA, 'an S3 store')
        self._pool = count_option(self.options, 'max_pool_connections', 32)
        self._connection = PerProcess(self._connect)

    @property
    def url(self) -> str:
        """The root."""
        scheme = self.service.scheme if self.service else 's3'
        return f'{scheme}://{self.bucket}/{self.prefix}'.rstrip('/')

    def __repr__(self) -> str:
        return f'S3Store({self.url!r})'

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        where = self._where(key)
        if size == 0:
            return ''
        if wanted := range_header(offset, size):
            where['Range'] = wanted
        if etag:
            where['IfMatch'] = f'"{etag}"'
        with self._mapped_errors('Reading', key):
            try:
                answer = self._client.get_object(**where)
            except self._client.exceptions.ClientError as error:
                if _status(error) != 416:
                    raise
                return nothing_left(self.head(key), f'{self.url}/{key}', offset=offset, size=size, wanted=etag)
        found = answer['ETag'].strip('"')
        expected = int(answer['ContentLength'])
        with contextlib.closing(answer['Body']) as body:
            return receive(
                lambda: body.read(CHUNK),
                out,
                url=f'{self.url}/{key}',
                etag=found,
                wanted=etag,
                expected=expected,
                offset=offset,
                size=size,
                is_part=answer['ResponseMetadata']['HTTPStatusCode'] == 206,
                mapped_errors=lambda: self._mapped_errors('Reading', key, etag=found),
            )

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`."""
        where = self._where(key)
        body = SourcePart(source, size)
        with self._mapped_errors('Writing', key):
            self._client.put_object(**where, Body=body, ContentLength=size)

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        where = self._where(key)
        with self._mapped_errors('Looking up', key):
            answer = self._client.head_object(**where)
        return ObjectInfo(key, int(answer['ContentLength']), answer['ETag'].strip('"'))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        where = {'Bucket': self.bucket, 'Prefix': self._names.of_prefix(prefix), **self._payer()}
        with self._mapped_errors('Listing', prefix):
            for page in self._client.get_paginator('list_objects_v2').paginate(**where):
                for item in page.get('Contents', ()):
                    if not item['Key'].endswith('/'):  # the folders of S3 consoles
                        yield ObjectInfo(self._names.key(item['Key']), int(item['Size']), item['ETag'].strip('"'))

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        where = self._where(key)
        with self._mapped_errors('Deleting', key):
            self._client.delete_object(**where)

    def _where(self, key: str) -> dict[str, Any]:
        return {'Bucket': self.bucket, 'Key': self._names.of_key(key), **self._payer()}

    def _payer(self) -> dict[str, str]:
        return {'RequestPayer': 'requester'} if self.options.requester_pays else {}

    @property
    def _client(self) -> Any:
        return self._connection.get()[0]

    def _connect(self) -> tuple[Any, Any]:
        """A client, and the session that it is of."""
        try:
            from boto3.session import Session
        except ImportError as error:
            raise MissingDependencyError(
                f'{self.url} needs boto3, which is not installed. Run: pip install "headrace[s3]"'
            ) from error
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session as CoreSession

        options, service = self.options, self.service
        if service:
            endpoint = options.endpoint_url or service.endpoint_url
        else:
            endpoint = options.endpoint_url or os.environ.get('S3_ENDPOINT_URL') or None
        settings: dict[str, Any] = {
            'connect_timeout': options.connect_timeout,
            'read_timeout': options.read_timeout,
            # One attempt per call: `retry.Retry` decides about others.
            'retries': {'total_max_attempts': 1, 'mode': 'standard'},
            'max_pool_connections': self._pool,
            'tcp_keepalive': True,
        }
        if options.anonymous:
            settings['signature_version'] = UNSIGNED
        if 'addressing_style' in options.extra:
            settings['s3'] = {'addressing_style': options.extra['addressing_style']}
        try:
            core = CoreSession()
            if profile := options.extra.get('profile'):
                core.set_config_variable('profile', profile)
            for name, value in METADATA_SERVICE.items():
                if core.get_config_variable(name) == 1:  # botocore's own default
                    core.set_config_variable(name, value)
            loader = _descriptions(core.get_config_variable('data_path'))
            core.register_component('data_loader', loader)
            session = Session(botocore_session=core, profile_name=profile, region_name=options.region)
            loader.search_paths[:] = dict.fromkeys(loader.search_paths)  # each session adds boto3's
            custom = endpoint or _configured_endpoint(session)
            if custom:
                # Servers other than AWS's may know neither the checksums nor their trailers.
                settings['request_checksum_calculation'] = 'when_required'
                settings['response_checksum_validation'] = 'when_required'
            region = options.region or (service and service.region) or session.region_name
            client = session.client(
                's3',
                endpoint_url=endpoint,
                region_name=region or ('us-east-1' if custom else None),
                config=Config(**settings),
                **self._keys(),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f'boto3 made no client for {self.url}: {error}. Check the endpoint ({endpoint or "the default"}), the '
                f'region ({options.region or "the default"}) and the AWS profile.'
            ) from error
        return client, session

    def _keys(self) -> dict[str, Any]:
        """The keys of a service, which are read where they are used: none is kept, printed or pickled."""
        if not self.service or self.options.anonymous:
            return {}
        names = self.service.access_key_variable, self.service.secret_key_variable
        keys = [os.environ.get(name, '') for name in names]
        if not all(keys):
            raise AccessDeniedError(
                f'{self.url} needs the environment variables {names[0]} and {names[1]}; they are not both set. Set '
                f'them in each process that reads it.'
            )
        return {'aws_access_key_id': keys[0], 'aws_secret_access_key': keys[1]}

    def _server(self) -> str:
        return self._client.meta.endpoint_url

    def _credentials(self) -> str:
        """Which credentials the requests are signed with, without saying what they are."""
        if self.options.anonymous:
            return ANONYMOUS
        if self.service:
            return f'the keys in {self.service.access_key_variable} and {self.service.secret_key_variable}'
        found = None
        with contextlib.suppress(Exception):
            found = self._connection.get()[1].get_credentials()
        return f'credentials from {found.method!r}' if found is not None else 'no credentials'

    @contextlib.contextmanager
    def _mapped_errors(self, doing: str, key: str, *, etag: str | None = None) -> Generator[None]:
        """Turn what boto3 and the libraries below it raise into headrace's exceptions."""
        assert self._client  # before botocore is imported: it says what is missing if boto3 is not installed
        from botocore import exceptions
        from urllib3.exceptions import HTTPError

        try:
            yield
        except StorageError:
            raise
        except exceptions.ClientError as error:
            raise self._from_answer(doing, key, error) from error
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError,
            exceptions.SSOError,
        ) as error:
            self._connection.forget()  # a client without credentials never looks for some again
            raise AccessDeniedError(
                f'{doing} {self.url}/{key} needs credentials, and boto3 found none that work: {error}. Configure one '
                f'of its sources (environment, ~/.aws, a role), or set `anonymous` for a public bucket.'
            ) from error
        except exceptions.ParamValidationError as error:
            raise ConfigError(
                f'{doing} {self.url}/{key} is no request that S3 knows: {error}. Check the URL.'
            ) from error
        except (
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            exceptions.IncompleteReadError,
            exceptions.ResponseStreamingError,
            exceptions.FlexibleChecksumError,
            HTTPError,
            ConnectionError,
            TimeoutError,
        ) as error:
            raise BrokenTransferError.at(
                f'{doing} {self.url}/{key} at {self._server()} broke: {type(error).__name__}: {error}.', etag=etag
            ) from error
        except exceptions.BotoCoreError as error:
            raise StorageError(f'{doing} {self.url}/{key} failed: {type(error).__name__}: {error}.') from error

    def _from_answer(self, doing: str, key: str, error: Any) -> Exception:
        code, status = str(error.response.get('Error', {}).get('Code', '')), _status(error)
        what = f'{doing} {self.url}/{key} at {self._server()}: {error}'
        if code == 'NoSuchBucket':
            return not_found(f'{self.url}/{key}', self._absent(key, bucket=False))
        if status in {301, 307, 400} and code in {'PermanentRedirect', 'AuthorizationHeaderMalformed', '301', '400'}:
            return ConfigError(f'{what}. The bucket is in another region or at another endpoint: name it.')
        return error_of_status(
            MEANINGS.get(code, status),
            what,
            url=f'{self.url}/{key}',
            absent=lambda: self._absent(key, bucket=self._bucket_exists()),
            credentials=self._credentials,
            remedy='Use credentials that may do this, correct the endpoint, or set `anonymous` or `requester_pays` if '
            'the bucket wants that.',
            retry_after=error.response.get('ResponseMetadata', {}).get('HTTPHeaders', {}).get('retry-after'),
        )

    def _bucket_exists(self) -> bool | None:
        """Whether the bucket is there; None if it does not say."""
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except self._client.exceptions.ClientError as error:
            return False if _status(error) == 404 else None
        except Exception:
            return None
        return True

    def _absent(self, key: str, *, bucket: bool | None) -> str:
        reason = why_absent(
            bucket,
            container=f'the bucket {self.bucket!r}',
            server=self._server(),
            name=f'the key {self._names.shown(key)!r}',
        )
        places = 'options' if self.service else 'options, S3_ENDPOINT_URL, AWS_ENDPOINT_URL_S3'
        return f'{reason}. Check the URL and the endpoint ({places}).'


@functools.cache
def _descriptions(path: str | None) -> Any:
    """What botocore reads of the services from its files, which is most of the time that a client takes to make.

    All clients of a process share it, such as those of the streams of a mixture.
    """
    from botocore.loaders import create_loader

    return create_loader(path)


def _status(error: Any) -> int:
    return int(error.response.get('ResponseMetadata', {}).get('HTTPStatusCode', 0))


def _configured_endpoint(session: Any) -> str | None:
    """The endpoint that boto3 will resolve from its own variables or profile, if any."""
    for name in ('AWS_ENDPOINT_URL_S3', 'AWS_ENDPOINT_URL'):
        if os.environ.get(name):
            return os.environ[name]
    profile = session._session.get_scoped_config() if session.profile_name in session.available_profiles else {}
    return profile.get('endpoint_url') or ('services' if profile.get('services') else None)
