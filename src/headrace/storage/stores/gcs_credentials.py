"""Credentials, server and billed project of requests to Google Cloud Storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import AccessDeniedError, ConfigError, MissingDependencyError
from headrace.storage.transfer.answer_bounds import bound_session
from headrace.storage.transfer.http_errors import ANONYMOUS

if TYPE_CHECKING:
    from headrace.storage.protocol import StoreOptions

__all__ = ['Connection', 'connect', 'describe']

SCOPE: Final = 'https://www.googleapis.com/auth/devstorage.read_write'


class Connection(NamedTuple):
    """A process's client, session and credentials."""

    client: Any
    session: Any
    """Of the same credentials: the client hides the answers that bodies are read from."""
    credentials: Any
    payer: str | None
    """The project that is billed, if it is not the bucket's own."""


def connect(url: str, options: StoreOptions, connections: int) -> Connection:
    """Make the client for a store.

    Args:
        url: The store's, for messages.
        options: Of the store.
        connections: Kept open at most.

    Raises:
        AccessDeniedError: There are no credentials.
        ConfigError: A setting breaks a rule.
        MissingDependencyError: The extra ``gcs`` is not installed.
    """
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud.storage import Client
        from requests.adapters import HTTPAdapter
    except ImportError as error:
        raise MissingDependencyError(
            f'{url} needs google-cloud-storage, which is not installed. Run: pip install "headrace[gcs]"'
        ) from error
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
    """The credentials of requests, and the project that they belong to."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.oauth2.service_account import Credentials

    if options.anonymous:
        return AnonymousCredentials(), None
    path = options.extra.get('service_account_file')
    if path is not None:
        try:
            found = Credentials.from_service_account_file(str(path), scopes=[SCOPE])
        except (OSError, ValueError) as error:
            raise ConfigError(
                f'`service_account_file` names the JSON key of a service account; got {path!r}: {error} Correct '
                f'the path, or set GOOGLE_APPLICATION_CREDENTIALS for other kinds of credentials.'
            ) from error
        return found, found.project_id
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
    known = credentials.get_cred_info() if hasattr(credentials, 'get_cred_info') else None
    if known:
        who = f' of {known["principal"]}' if known.get('principal') else ''
        return f'{known["credential_type"]}{who} from {known["credential_source"]}{origin}'
    who = getattr(credentials, 'service_account_email', '')
    kind = f'{type(credentials).__module__}.{type(credentials).__name__}'
    return f'credentials ({kind}' + (f', {who})' if who else ')') + origin
