"""Credentials of Oracle's cloud: settings and files of its command line, and principals.

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
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import AccessDeniedError, ConfigError
from headrace.storage.transfer.http_errors import ANONYMOUS

if TYPE_CHECKING:
    from headrace.storage.protocol import StoreOptions

__all__ = ['AUTH', 'OCICredentials', 'find_credentials']

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
CHASSIS: Final = Path('/sys/class/dmi/id/chassis_asset_tag')
"""Says on the machines of the cloud that they are."""


class OCICredentials(NamedTuple):
    """Configuration and signer for the SDK's client."""

    config: dict[str, Any]
    signer: Any
    """None if the SDK makes one from the configuration."""
    source: str
    """Of the credentials, without saying what they are."""


def find_credentials(url: str, options: StoreOptions) -> OCICredentials:
    """Find the first credentials that are configured.

    Args:
        url: The store's, for messages.
        options: Of the store.

    Raises:
        ConfigError: The configuration breaks a rule.
        AccessDeniedError: Nothing is configured, or a principal has no credentials here.
    """
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
