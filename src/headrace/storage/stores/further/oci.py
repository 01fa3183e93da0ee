"""Oracle Cloud Infrastructure's Object Storage, through its SDK.

``oci://bucket@namespace/path``, or ``oci://bucket/path`` for the namespace of the tenancy, which is asked of the
service once per process. The server is ``StoreOptions.endpoint_url``, else ``OCI_CLI_ENDPOINT``, else the region's. The
region is ``StoreOptions.region``, ``OCI_CLI_REGION``, the profile's, the principal's or ``OCI_REGION``. For the
service's other interface, which is compatible with S3, use ``s3://`` with an endpoint.

``extra['auth']`` or ``OCI_CLI_AUTH`` names the kind of credentials: ``api_key``, ``security_token``,
``instance_principal``, ``resource_principal`` or ``oke_workload_identity``. Without it, the first that exists is used:

1. A profile: ``extra['profile']``, ``OCI_CLI_PROFILE`` or ``DEFAULT``. Its file is ``extra['config_file']``,
   ``OCI_CLI_CONFIG_FILE``, ``OCI_CONFIG_FILE``, ``~/.oci/config`` or ``~/.oraclebmc/config``. The variables of the
   command line (``OCI_CLI_USER``, ``OCI_CLI_KEY_FILE``, ...) replace its entries. If the profile names the token of a
   session, the token is used, and read again after a refresh.
2. the resource principal, where ``OCI_RESOURCE_PRINCIPAL_VERSION`` is set;
3. the instance principal, on machines of the cloud.

The SDK refreshes credentials of principals when they expire.

``StoreOptions.extra``: ``auth``, ``config_file``, ``profile`` and ``max_pool_connections`` (connections per process).
``requester_pays`` has no meaning here.

The SDK (oci 2.189) reads one profile, and signs with what it is given; both are used here. Unlike the SDKs of other
clouds, it does not look for credentials in one place after another. The rest is therefore ours:

- The first credentials that are configured. The SDK has a class for each kind of principal, and chooses none.
- The variables ``OCI_CLI_*``, which are the command line's. The SDK reads ``OCI_CONFIG_FILE`` and ``OCI_REGION`` only.
- The session token of a profile: the SDK ignores ``security_token_file``. Its signer holds one token for ever, though
  tokens live for an hour.
- Public buckets: the SDK's client demands a signer, and it has none that leaves requests unsigned.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

from headrace.errors import AccessDeniedError, ConfigError, StorageError, import_optional
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
    version,
    why_absent,
)
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.sealed_errors import sealed

AUTH: Final = ('api_key', 'security_token', 'instance_principal', 'resource_principal', 'oke_workload_identity')
"""Ways to sign, as the command line names them."""
FILE_VARIABLES: Final = ('OCI_CLI_CONFIG_FILE', 'OCI_CONFIG_FILE')
DEFAULT_FILES: Final = ('~/.oci/config', '~/.oraclebmc/config')
OVERRIDES: Final = {
    'user': 'OCI_CLI_USER',
    'tenancy': 'OCI_CLI_TENANCY',
    'fingerprint': 'OCI_CLI_FINGERPRINT',
    'key_file': 'OCI_CLI_KEY_FILE',
    'key_content': 'OCI_CLI_KEY_CONTENT',
    'pass_phrase': 'OCI_CLI_PASSPHRASE',
    'region': 'OCI_CLI_REGION',
    'security_token_file': 'OCI_CLI_SECURITY_TOKEN_FILE',
}
"""Entries of a profile, and the variables that replace them."""
CHASSIS: Final = Path('/sys/class/dmi/id/chassis_asset_tag')  # Says on the machines of the cloud that they are.

EXTRA: Final = frozenset({'auth', 'config_file', 'max_pool_connections', 'profile'})

ENDPOINT_VARIABLE: Final = 'OCI_CLI_ENDPOINT'


class OCICredentials(NamedTuple):
    config: dict[str, Any]
    signer: Any  # None if the SDK makes one from the configuration.
    source: str  # Of the credentials, without saying what they are.


def find_credentials(url: str, options: StoreOptions) -> OCICredentials:
    """Find the first credentials that are configured; an AccessDeniedError if there are none."""
    if options.anonymous:
        credentials = OCICredentials({}, _unsigned(), ANONYMOUS)
    else:
        auth = str(options.extra.get('auth') or os.environ.get('OCI_CLI_AUTH', ''))
        if auth and auth not in AUTH:
            raise ConfigError(
                f'Requests to {url} are signed by one of {", ".join(AUTH)}; got {auth!r} from extra["auth"] or '
                f'OCI_CLI_AUTH. Correct it, or leave it out.'
            )
        auth = auth or _detect(url, options)
        credentials = (
            _by_profile(url, auth, options) if auth in {'', 'api_key', 'security_token'} else _by_principal(auth)
        )
    region = options.region or os.environ.get('OCI_CLI_REGION') or credentials.config.get('region')
    region = region or getattr(credentials.signer, 'region', None) or os.environ.get('OCI_REGION')
    return credentials._replace(config={**credentials.config, 'region': region} if region else credentials.config)


def _detect(url: str, options: StoreOptions) -> str:
    """The way that this machine is set up for; '' if a profile says it."""
    if _file(options) or (os.environ.get('OCI_CLI_USER') and os.environ.get('OCI_CLI_TENANCY')):
        return ''
    if os.environ.get('OCI_RESOURCE_PRINCIPAL_VERSION'):
        return 'resource_principal'
    if CHASSIS.is_file() and CHASSIS.read_text().strip() == 'OracleCloud.com':
        return 'instance_principal'
    raise _nothing(url)


def _nothing(url: str) -> AccessDeniedError:
    return AccessDeniedError(
        f'Requests to {url} need credentials, and there are none: no file {" or ".join(DEFAULT_FILES)}, none of '
        f'{", ".join((*FILE_VARIABLES, "OCI_CLI_USER", "OCI_RESOURCE_PRINCIPAL_VERSION"))} is set, and this is no '
        f'machine of the cloud. Run "oci setup config", name a way with OCI_CLI_AUTH or extra["auth"] '
        f'({", ".join(AUTH)}), or set `anonymous` for a public bucket.'
    )


def _file(options: StoreOptions) -> str:
    """The file of profiles: one that is named, or the first of the default ones that exists."""
    named = options.extra.get('config_file') or next(filter(None, map(os.environ.get, FILE_VARIABLES)), '')
    return str(named) or next((name for name in DEFAULT_FILES if Path(name).expanduser().is_file()), '')


def _by_profile(url: str, auth: str, options: StoreOptions) -> OCICredentials:
    from oci import config as files
    from oci.exceptions import ClientError

    file = _file(options)
    profile = str(options.extra.get('profile') or os.environ.get('OCI_CLI_PROFILE') or files.DEFAULT_PROFILE)
    source = f'credentials from the profile {profile!r} of {file}' if file else 'credentials from'
    config: dict[str, Any] = {}
    try:
        if file:
            config = files.from_file(file, profile)
        replaced = {entry: name for entry, name in OVERRIDES.items() if os.environ.get(name)}
        config.update({entry: os.environ[name] for entry, name in replaced.items()})
        if not file and not replaced:
            raise _nothing(url)
        if replaced:
            source += f'{" and" if file else ""} {", ".join(replaced.values())}'
        if auth == 'api_key' or (not auth and 'security_token_file' not in config):
            return OCICredentials(config, None, source)
        if not config.get('security_token_file') or not config.get('key_file'):
            raise ConfigError(
                f'A security token needs the entries security_token_file and key_file; {source} for {url} lack one. '
                f'Run "oci session authenticate".'
            )
        return OCICredentials(config, _token_signer(config), source)
    except (ClientError, OSError, ValueError) as error:
        if isinstance(error, (AccessDeniedError, ConfigError)):
            raise
        raise ConfigError(
            f'{url} cannot use {source}: {error}. Correct the file, or choose another profile.'
        ) from error


def _by_principal(auth: str) -> OCICredentials:
    from oci.auth import signers

    make: dict[str, Any] = {
        'instance_principal': signers.InstancePrincipalsSecurityTokenSigner,
        'resource_principal': signers.get_resource_principals_signer,
        'oke_workload_identity': signers.get_oke_workload_identity_resource_principal_signer,
    }
    try:
        return OCICredentials({}, make[auth](), f'credentials of the {auth.replace("_", " ")}')
    except Exception as error:  # services, files and variables of the machine can fail in any way
        raise AccessDeniedError(
            f'There are no credentials of the {auth.replace("_", " ")} here: {type(error).__name__}: {error}. Run it '
            f'where the cloud gives them, or name another way with OCI_CLI_AUTH or extra["auth"] ({", ".join(AUTH)}).'
        ) from error


def _unsigned() -> Any:
    """A signer that signs nothing. With a signer of its kind, a client needs no other configuration."""
    from oci.auth.signers import SecurityTokenSigner

    class Unsigned(SecurityTokenSigner):
        def __init__(self) -> None:
            self.region = None

        def __call__(self, request: Any, enforce_content_headers: bool = True) -> Any:
            del enforce_content_headers
            return request

    return Unsigned()


def _token_signer(config: dict[str, Any]) -> Any:
    """Signs with the token of a session. It lives for an hour; a refresh writes it to the same file."""
    from oci.auth.signers import SecurityTokenSigner
    from oci.signer import load_private_key_from_file

    token_file = Path(config['security_token_file']).expanduser()
    key_file = Path(config['key_file']).expanduser()

    def version() -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns for file in (token_file, key_file))

    class TokenFileSigner(SecurityTokenSigner):
        def __init__(self) -> None:
            self._renewing = threading.Lock()
            self._read()

        def _read(self) -> None:
            self._version = version()
            key = load_private_key_from_file(str(key_file), config.get('pass_phrase'))
            super().__init__(token_file.read_text().strip(), key)

        def __call__(self, request: Any, enforce_content_headers: bool = True) -> Any:
            with self._renewing, contextlib.suppress(OSError):  # while the files are being replaced
                if version() != self._version:
                    self._read()
            return super().__call__(request, enforce_content_headers)

    return TokenFileSigner()


def open_oci_store(url: str, options: StoreOptions) -> OCIStore:
    """The store for ``oci://bucket@namespace/prefix`` or ``oci://bucket/prefix``."""
    _, rest = split_url(url)
    place, _, prefix = rest.partition('/')
    bucket, at, namespace = place.partition('@')
    if not bucket or (at and not namespace) or '@' in namespace:
        raise ConfigError(
            f'An OCI URL is oci://bucket@namespace/prefix, or oci://bucket/prefix for the namespace of the tenancy; '
            f'got {url!r}. Correct it.'
        )
    return OCIStore(bucket, prefix, options, namespace=namespace)


class _Connection(NamedTuple):
    client: Any
    source: str  # Of the credentials.


@sealed
class OCIStore(BucketStore):
    """Objects of one bucket, below a prefix. The client is made at the first request of each process."""

    def __init__(
        self, bucket: str, prefix: str = '', options: StoreOptions | None = None, *, namespace: str = ''
    ) -> None:
        self.bucket = bucket
        super().__init__(prefix, options, extra=EXTRA, title='an OCI store')
        self.namespace = namespace  # Empty for that of the tenancy.
        self._own_namespace = PerProcess(self._ask_for_namespace)

    @property
    def url(self) -> str:
        place = f'{self.bucket}@{self.namespace}' if self.namespace else self.bucket
        return f'oci://{place}/{self.prefix}'.rstrip('/')

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        from oci.exceptions import ServiceError

        how: dict[str, str] = {}
        if wanted.range:
            how['range'] = wanted.range
        if wanted.etag:
            how['if_match'] = wanted.etag
        try:
            answer = self._client.get_object(*self._place(), name, **how)
        except ServiceError as error:
            if error.status != 416:
                raise
            return None
        return Body(
            # The bytes as they are stored, also where their Content-Encoding says that they are compressed.
            lambda: answer.data.raw.read(CHUNK, decode_content=False),
            answer.data.close,
            version(answer.headers.get('ETag')),
            answer.headers.get('Content-Length'),
            answer.headers.get('Content-Range', '') if answer.status == 206 else None,
        )

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        name = self._name(key)
        body = SourcePart(source, size)
        with self._mapped_errors('Writing', key):
            self._client.put_object(*self._place(), name, body, content_length=size)

    def head(self, key: str) -> ObjectInfo:
        name = self._name(key)
        with self._mapped_errors('Looking up', key):
            headers = self._client.head_object(*self._place(), name).headers
        return described(key, f'{self.url}/{key}', headers.get('Content-Length'), headers.get('ETag'))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        where: dict[str, Any] = {'prefix': self._name_prefix(prefix), 'fields': 'name,size,etag'}

        def pages() -> Iterator[Any]:
            while True:
                page = self._client.list_objects(*self._place(), **where).data
                yield page.objects
                if not page.next_start_with:
                    return
                where['start'] = page.next_start_with

        with self._mapped_errors('Listing', prefix):
            for item in items_of(f'{self.url}/{prefix}', pages(), lambda item: item.name):
                if not item.name.endswith('/'):  # the folders of the console
                    yield ObjectInfo(self._key(item.name), int(item.size), item.etag)

    def delete(self, key: str) -> None:
        name = self._name(key)
        client = self._client
        from oci.exceptions import ServiceError

        with self._mapped_errors('Deleting', key):
            try:
                client.delete_object(*self._place(), name)
            except ServiceError as error:
                if error.code != 'ObjectNotFound':
                    raise

    def _place(self) -> tuple[str, str]:
        return self.namespace or self._own_namespace.get(), self.bucket

    @property
    def _client(self) -> Any:
        return self._connection.get().client

    def _server(self) -> str:
        # The SDK keeps options of the address in braces until it sends a request.
        return re.sub(r'{[^}]*}', '', self._client.base_client.endpoint)

    def _ask_for_namespace(self) -> str:
        return str(self._client.get_namespace().data)

    def _connect(self) -> _Connection:
        import_optional('oci.object_storage', f'{self.url} needs oci', 'oci')
        from oci.circuit_breaker import NoCircuitBreakerStrategy
        from oci.exceptions import ClientError
        from oci.object_storage import ObjectStorageClient
        from oci.retry import NoneRetryStrategy

        options = self.options
        if options.anonymous and not self.namespace:
            raise ConfigError(
                f'Without credentials no namespace is told; got {self.url!r}. Name it: oci://bucket@namespace/prefix.'
            )
        endpoint = options.endpoint_url or os.environ.get(ENDPOINT_VARIABLE)
        if endpoint and not (urlsplit(endpoint).scheme in {'http', 'https'} and urlsplit(endpoint).hostname):
            raise ConfigError(
                f'An endpoint of OCI is https://objectstorage.REGION.oraclecloud.com or the like; got {endpoint!r} for '
                f'{self.url}. Correct `endpoint_url` or {ENDPOINT_VARIABLE}.'
            )
        credentials = find_credentials(self.url, options)
        settings: dict[str, Any] = {
            'timeout': (options.connect_timeout, options.read_timeout),
            # One attempt per call: `retry.Retry` decides about others, and when to stop asking.
            'retry_strategy': NoneRetryStrategy(),
            'circuit_breaker_strategy': NoCircuitBreakerStrategy(),
        }
        if credentials.signer is not None:
            settings['signer'] = credentials.signer
        try:
            client = ObjectStorageClient(credentials.config, service_endpoint=endpoint, **settings)
        except (ClientError, ValueError, OSError) as error:
            raise ConfigError(
                f'The SDK made no client for {self.url} with {credentials.source}: {type(error).__name__}: {error}. '
                f'Check the endpoint ({endpoint or "the default"}), the region '
                f'({credentials.config.get("region") or "none"}) and the credentials.'
            ) from error
        for adapter in client.base_client.session.adapters.values():
            adapter.init_poolmanager(self._pool, self._pool)
        bound_session(client.base_client.session, options.answer_seconds)
        return _Connection(client, credentials.source)

    def _network_errors(self) -> tuple[type[Exception], ...]:
        from oci import exceptions
        from urllib3.exceptions import HTTPError

        return exceptions.RequestException, exceptions.ConnectTimeout, HTTPError

    def _told(self, error: BaseException) -> str:
        # The SDK wraps the error that says it, and adds where to read about errors.
        while error.args and isinstance(error.args[0], BaseException):
            error = error.args[0]
        return f'{type(error).__name__}: {error.args[0] if error.args else error}'

    def _explained(self, doing: str, key: str, error: Exception, connection: _Connection) -> Exception | None:
        from oci.exceptions import ServiceError

        if not isinstance(error, ServiceError):
            return None
        return self._from_answer(f'{doing} {self.url}/{key} at {self._server()}', key, error, connection.source)

    def _from_answer(self, what: str, key: str, error: Any, source: str) -> StorageError:
        told = ' '.join(str(part) for part in (error.status, error.code, error.message) if part).rstrip('.')
        return error_of_status(
            int(error.status),
            f'{what}: {told}',
            url=f'{self.url}/{key}',
            absent=lambda: self._absent(key, str(error.code)),
            credentials=lambda: source,
            remedy='Use credentials that may do this, check the clock of this machine (a signature is good for five '
            'minutes), or set `anonymous` for a public bucket.',
            retry_after=error.headers.get('Retry-After'),
        )

    def _absent(self, key: str, code: str) -> str:
        if not (self.namespace or self._own_namespace.is_made):
            return (
                f'{self._server()} does not tell the namespace of the tenancy. Name it: oci://bucket@namespace/prefix.'
            )
        known = {'ObjectNotFound': True, 'BucketNotFound': False, 'NamespaceNotFound': False}
        exists = known[code] if code in known else self._bucket_exists()
        place = f'the bucket {self.bucket!r} of the namespace {self._place()[0]!r}'
        reason = why_absent(exists, place, self._server(), f'the object {self._shown(key)!r}')
        if exists is False:
            # The service does not tell the two apart.
            reason += f', or {self._connection.get().source} may not read it'
        return f'{reason}. Check the URL, the region and the policies.'

    def _bucket_exists(self) -> bool | None:
        from oci.exceptions import ServiceError

        try:
            self._client.head_bucket(*self._place())
        except ServiceError as error:
            return False if error.status == 404 else None
        except Exception:
            return None
        return True
