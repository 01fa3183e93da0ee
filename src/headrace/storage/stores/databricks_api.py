"""Requests to a Databricks workspace, as its Files API and its DBFS API need them.

The credentials are databricks-sdk's; the requests are made here, since the SDK's own are repeated up to a deadline and
have one time-out for everything.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from headrace.error_mapping import mapping_errors
from headrace.errors import AccessDeniedError, ConfigError, HeadraceError, MissingDependencyError, StorageError
from headrace.storage.protocol import StoreOptions, check_extra, check_key
from headrace.storage.transfer.answer_bounds import bound_session
from headrace.storage.transfer.http_errors import UNREADABLE, error_of_status, unreadable
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['RefusedError', 'WorkspaceFolder', 'etag_of']

EXTRA: Final = frozenset({'profile'})
CONNECTIONS: Final = 32
"""Kept open, per process."""
MEANINGS: Final = {
    **dict.fromkeys(('NOT_FOUND', 'RESOURCE_DOES_NOT_EXIST'), 404),
    **dict.fromkeys(('REQUEST_LIMIT_EXCEEDED', 'RESOURCE_EXHAUSTED'), 429),
    'PERMISSION_DENIED': 403,
    'TEMPORARILY_UNAVAILABLE': 503,
    'UNAUTHENTICATED': 401,
}
"""The HTTP status that an error code of Databricks stands for; that of the answer may be another."""


class RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, text: str, retry_after: str | None) -> None:
        super().__init__(f'HTTP status {status}{f" {code}" if code else ""}{f": {text}" if text else ""}')
        self.status = MEANINGS.get(code, status)
        self.code = code
        self.retry_after = retry_after


class WorkspaceFolder:
    """A folder of a workspace: what the stores for volumes and for DBFS have in common."""

    def __init__(self, root: str, options: StoreOptions) -> None:
        self.root = '/' + root.strip('/')
        self.options = options
        check_extra(options, EXTRA, 'a Databricks store')
        self._connection = PerProcess(self._connect)

    @property
    def url(self) -> str:
        """The root."""
        return f'dbfs:{self.root}'

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.url!r})'

    def _path(self, key: str) -> str:
        return f'{self.root.rstrip("/")}/{check_key(key)}'

    def _connect(self) -> tuple[Any, Any]:
        """The SDK's configuration, with its credentials, and a session of requests."""
        try:
            from databricks.sdk.core import Config
        except ImportError as error:
            raise MissingDependencyError(
                f'{self.url} needs databricks-sdk, which is not installed. Run: pip install "headrace[databricks]"'
            ) from error
        import requests
        from requests.adapters import HTTPAdapter

        try:
            with self._mapped_errors('Finding the workspace of', ''):
                config = Config(
                    host=self.options.endpoint_url,
                    profile=self.options.extra.get('profile'),
                    http_timeout_seconds=self.options.read_timeout,
                    retry_timeout_seconds=1,  # of what it asks about the workspace; 0 would be its default of 300
                    product='headrace',
                    product_version=__version__,
                )
        except ConfigError:
            raise
        except ValueError as error:
            text = _without_settings(error)
            if ' auth: ' in text:
                raise self._no_credentials(text) from error
            raise ConfigError(
                f'databricks-sdk made no client for {self.url}: {text}. Check the address of the workspace '
                f'(DATABRICKS_HOST, endpoint_url) and the profile.'
            ) from error
        session = requests.Session()
        for scheme in ('https://', 'http://'):
            session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS, max_retries=0))
        bound_session(session, self.options.answer_seconds)
        return config, session

    def _no_credentials(self, text: str) -> AccessDeniedError:
        return AccessDeniedError(
            f'{self.url} needs credentials, and databricks-sdk found none that work: {text}. Configure one of its '
            f'sources (DATABRICKS_HOST and DATABRICKS_TOKEN, a profile of ~/.databrickscfg, OAuth).'
        )

    @contextlib.contextmanager
    def _answer(
        self,
        doing: str,
        key: str,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        json: dict[str, Any] | None = None,
        body: Any = None,
    ) -> Generator[Any]:
        """One request; its answer, whose body has not been read. An error is raised as `RefusedError`."""
        config, session = self._connection.get()
        # Lengths and ranges are of the bytes themselves.
        headers = {'Accept-Encoding': 'identity', 'User-Agent': config.user_agent, **(headers or {})}
        if getattr(config, 'workspace_id', None):  # of a host that serves several; old SDKs know of none
            headers['X-Databricks-Workspace-Id'] = config.workspace_id
        with self._mapped_errors(doing, key):
            try:
                authorization: dict[str, str] = config.authenticate()
            except ValueError as error:
                raise self._no_credentials(_without_settings(error)) from error
            answer = session.request(
                method,
                f'{config.host}{path}',
                params=query,
                headers=headers,
                json=json,
                data=body,
                auth=_Authorization(authorization),
                stream=True,
                allow_redirects=False,
                timeout=(self.options.connect_timeout, self.options.read_timeout),
            )
        with contextlib.closing(answer):
            if answer.status_code >= 300:
                with self._mapped_errors(doing, key):
                    refused = _refusal(answer)
                raise refused
            yield answer

    def _fetch(self, doing: str, key: str, method: str, path: str, **how: Any) -> dict[str, Any]:
        """The answer to one request. An error is raised as `RefusedError`."""
        with self._answer(doing, key, method, path, **how) as answer:
            with self._mapped_errors(doing, key):
                content: bytes = answer.content
            try:
                return answer.json() if content else {}
            except ValueError as error:
                raise StorageError(
                    f'{doing} {self.url}/{key}: {self._host()} answered with something else than JSON. Check that it '
                    f'is the address of a workspace (DATABRICKS_HOST, or the profile).'
                ) from error

    @contextlib.contextmanager
    def _refusals(self, doing: str, key: str) -> Generator[None]:
        """Turn answers that are errors into headrace's exceptions."""
        try:
            yield
        except RefusedError as error:
            if 300 <= error.status < 400:
                raise ConfigError(
                    f'{doing} {self.url}/{key}: {self._host()} redirects to a login page or elsewhere, as no API does. '
                    f'Check that it is the address of a workspace (DATABRICKS_HOST, or the profile).'
                ) from error
            raise error_of_status(
                error.status,
                f'{doing} {self.url}/{key} at {self._host()}: {str(error).rstrip(".")}',
                url=f'{self.url}/{key}',
                absent=lambda: (
                    f'{self._why_absent(key)}. Check the URL and the workspace (DATABRICKS_HOST, or the profile).'
                ),
                credentials=self._credentials,
                remedy='Use credentials that may do this, or have them granted what is missing.',
                retry_after=error.retry_after,
            ) from error

    def _why_absent(self, key: str) -> str:
        """The reason for the absence of an object, for messages."""
        raise NotImplementedError

    def _host(self) -> str:
        return str(self._connection.get()[0].host)

    def _credentials(self) -> str:
        """Which credentials the requests are made with, without saying what they are."""
        config = self._connection.get()[0]
        variables = [name for name in (attribute.env for attribute in config.attributes()) if name]
        used = [name for name in variables if os.environ.get(name)]
        profile = [f'the profile {config.profile!r}'] if config.profile else []
        return f'{config.auth_type!r} credentials from {", ".join(profile + used) or "the default profile"}'

    @mapping_errors
    def _mapped_errors(self, doing: str, key: str, *, etag: str | None = None) -> Generator[None]:
        """Turn what databricks-sdk, requests and urllib3 raise into headrace's exceptions."""
        from requests import RequestException
        from requests.exceptions import InvalidURL, MissingSchema
        from urllib3.exceptions import HTTPError

        try:
            yield
        except HeadraceError:
            raise
        except (InvalidURL, MissingSchema) as error:
            raise ConfigError(f'{doing} {self.url}/{key}: the address of the workspace is none: {error}.') from error
        except (RequestException, HTTPError, OSError) as error:
            raise BrokenTransferError.at(
                f'{doing} {self.url}/{key} broke: {type(error).__name__}: {error}.', etag=etag
            ) from error

    @mapping_errors
    def _mapped_headers(self, doing: str, key: str) -> Generator[None]:
        """Turn what is raised at headers that are missing, or break the rules, into headrace's exception."""
        try:
            yield
        except UNREADABLE as error:
            raise unreadable(f'{doing} {self.url}/{key} at {self._host()}', error) from error


def _without_settings(error: ValueError) -> str:
    """The message of the SDK without the values of its configuration, which it appends."""
    return str(error).partition('. Config:')[0].partition('. Env:')[0].rstrip('.')


class _Authorization:
    """Sets the SDK's headers on a request; given as ``auth``, it keeps requests from looking into ``~/.netrc``."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def __call__(self, request: Any) -> Any:
        request.headers.update(self._headers)
        return request


def _refusal(answer: Any) -> RefusedError:
    told: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        content = answer.json()
        told = content if isinstance(content, dict) else {}
    return RefusedError(
        answer.status_code,
        str(told.get('error_code', '')),
        str(told.get('message', '')),
        answer.headers.get('Retry-After'),
    )


def etag_of(modified: float, size: int) -> str:
    """The version of a file, made of its time of change in seconds and its size."""
    return f'{int(modified):x}-{size:x}'
