"""boto3's clients of S3: which server they ask, by which settings, and with whose credentials."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
import weakref
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import AccessDeniedError, ConfigError, MissingDependencyError
from headrace.storage.transfer.answer_bounds import bound_botocore
from headrace.storage.transfer.http_errors import ANONYMOUS
from headrace.storage.transfer.process_local import PerProcess

if TYPE_CHECKING:
    from headrace.storage.protocol import StoreOptions

__all__ = ['S3Connection', 'S3Service', 'connections']

METADATA_SERVICE: Final = {'metadata_service_num_attempts': 5, 'metadata_service_timeout': 2}
"""Attempts, and seconds for each, to get a machine's credentials: all processes of a node ask at the same moment."""

WRITTEN: Final = frozenset({'config-file', 'env', 'shared-credentials-file'})
"""Sources of credentials that somebody writes, by botocore's names: it does not know when they expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """Another service with S3's protocol, its own keys and its own URL scheme."""

    scheme: str
    endpoint_url: str
    """Where it is, unless `StoreOptions.endpoint_url` names another place."""
    region: str
    """The region in its signatures, unless `StoreOptions.region` is set."""
    access_key_variable: str
    """The environment variable that holds the access key."""
    secret_key_variable: str


class S3Connection:
    """A client of one process, and the session that it has its credentials from.

    Args:
        url: The store's, for messages.
        options: See `headrace.storage.stores.s3`.
        service: Gives the endpoint and the keys; None: boto3 finds them.
        pool: Connections that are kept open.
    """

    def __init__(self, url: str, options: StoreOptions, service: S3Service | None, pool: int) -> None:
        if importlib.util.find_spec('boto3') is None:
            raise MissingDependencyError(f'{url} needs boto3, which is not installed. Run: pip install "headrace[s3]"')
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
        """Its URL."""
        return self.client.meta.endpoint_url

    @property
    def credentials(self) -> str:
        """Which credentials the requests are signed with, without saying what they are."""
        if self._options.anonymous:
            return ANONYMOUS
        if self._service:
            return f'the keys in {self._service.access_key_variable} and {self._service.secret_key_variable}'
        found = None
        with contextlib.suppress(Exception):
            found = self.session.get_credentials()
        return f'credentials from {found.method!r}' if found is not None else 'no credentials'

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
                found = self._new_session().get_credentials()
                return found is not None and found.get_frozen_credentials() != held.get_frozen_credentials()
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
        own = (service.access_key_variable, service.secret_key_variable) if service else ()
        variables = [name for name in list(os.environ) if name.startswith(('AWS_', 'S3_')) or name in own]
        environment = hash(frozenset((name, os.environ.get(name)) for name in variables))
        extra = tuple(sorted((name, repr(value)) for name, value in options.extra.items()))
        plain = tuple(getattr(options, each.name) for each in fields(options) if each.name != 'extra')
        key = plain, extra, service, pool, environment
        with self._lock:
            found = self._shared.get(key)
            if found is None:
                found = self._shared[key] = S3Connection(url, options, service, pool)
            return found

    def forget(self, connection: S3Connection) -> None:
        """Have the next store that needs such a connection make one."""
        with self._lock:
            for key, found in list(self._shared.items()):
                if found is connection:
                    del self._shared[key]


connections: Final = PerProcess(_Connections)
"""This process' own."""


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
