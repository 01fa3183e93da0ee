"""URL -> store. Each backend is imported when its scheme is first opened, never before."""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from headrace.errors import ConfigError
from headrace.errors.redaction import keep_secrets_of_url, without_credentials
from headrace.storage.protocol import Store, StoreOptions

StoreFactory: TypeAlias = Callable[[str, StoreOptions], Store]  # Makes a store rooted at a URL.


@dataclass(frozen=True, slots=True)
class Backend:
    """A store of headrace, whose module is imported when one of its URLs is first opened.

    Its module has a function ``open_MODULE_store``. The extra of its SDK has the name of the module, too.
    """

    module: str
    example: str  # A URL of a store with a server, for tests and messages; else ''.
    takes_credentials: bool = False
    """Whether the backend handles credentials in a URL itself, or its names may look like them."""
    is_further: bool = False  # Whether the module is in `stores.further`.

    def __call__(self, url: str, options: StoreOptions) -> Store:
        if not self.takes_credentials:
            _refuse_credentials(url)
        folder = 'stores.further' if self.is_further else 'stores'
        module = importlib.import_module(f'headrace.storage.{folder}.{self.module}')
        return getattr(module, f'open_{self.module}_store')(url, options)


fsspec_store: Final = Backend('fsspec', '', is_further=True)
"""Opens the URLs of any file system of fsspec, as in ``register_store('smb', fsspec_store)``."""

_factories: dict[str, StoreFactory] = {
    '': Backend('local', '', takes_credentials=True),
    'file': Backend('local', '', takes_credentials=True),
    'azure': Backend('azure', 'azure://container/x'),
    'azure-dl': Backend('azure', 'azure-dl://filesystem/x'),
    'oci': Backend('oci', 'oci://bucket@namespace/x', is_further=True),
    's3': Backend('s3', 's3://bucket/x'),
    'sftp': Backend('sftp', 'sftp://host/x', takes_credentials=True, is_further=True),
    'dbfs': Backend('databricks', 'dbfs:/Volumes/catalog/schema/volume', is_further=True),
    'gs': Backend('gcs', 'gs://bucket/x'),
    'webhdfs': Backend('fsspec', 'webhdfs://host:9870/x', is_further=True),
    'hf': Backend('hf', 'hf://datasets/owner/name', is_further=True),
}


def backends() -> tuple[Backend, ...]:
    return tuple(factory for factory in _factories.values() if isinstance(factory, Backend))


def known_schemes() -> tuple[str, ...]:
    """The URL schemes that `open_store` accepts, besides plain paths."""
    return tuple(sorted(scheme for scheme in _factories if scheme))


def register_store(scheme: str, factory: StoreFactory) -> None:
    """Have ``scheme://...`` URLs opened by ``factory``; a scheme that is already known is replaced."""
    if not scheme.replace('-', '').replace('+', '').replace('.', '').isalnum() or scheme != scheme.lower():
        raise ConfigError(
            f'A URL scheme is made of lower-case letters, digits, "-", "+" and "."; got {scheme!r}. '
            f'Register the part before "://", as in register_store("s3", factory).'
        )
    _factories[scheme] = factory


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Split into (scheme, rest): ``s3://b/k`` -> ``('s3', 'b/k')``, a plain path -> ``('', path)``.

    Databricks writes its URLs with one slash: ``dbfs:/Volumes/c`` is ``('dbfs', '/Volumes/c')``, as ``dbfs:///Volumes/c``.

    Raises:
        ConfigError: there is a NUL in it, which no path can hold.
    """
    text = os.fspath(url)
    if '\0' in text:
        raise ConfigError(f'A path or a URL has no NUL character, but {text!r} has. Take it out.')
    if text[:6].lower() == 'dbfs:/' and text[6:7] != '/':
        return 'dbfs', text[5:]
    scheme, separator, rest = text.partition('://')
    if not separator or '/' in scheme:
        return '', text
    return scheme.lower(), rest


def local_path(url: str | os.PathLike[str]) -> str | None:
    """The path that a plain path or a ``file://`` URL names; None for the URL of another store."""
    scheme, rest = split_url(url)
    if scheme != 'file':
        return None if scheme else rest
    host, _, path = rest.partition('/')
    if host not in {'', 'localhost'}:
        raise ConfigError(
            f'A file URL names a path of this machine, as in file:///data/x; got {url!r}, whose host is {host!r}. '
            f'Add the third "/", or mount that machine and name the mount.'
        )
    return unquote(f'/{path}')


def _refuse_credentials(url: str) -> None:
    """Raise ``ConfigError`` for a URL with a password or a signature: URLs end up in logs and checkpoints."""
    if without_credentials(url) != url:
        raise ConfigError(
            f'The URL of a store holds no password, key or signature; got {url!r}. Take them out, and put them where '
            f'the tools of its vendor look: an environment variable, a profile or a file, which docs/stores.md names.'
        )


_WEB: Final = {
    r'huggingface\.co/(datasets/[^/]+/[^/]+)(?:/(?:resolve|tree|blob)/[^/]+)?(/.*)?': r'hf://\1\2',
    r'storage\.(?:googleapis|cloud\.google)\.com/(.+)': r'gs://\1',
    r'([^/]+)\.s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com(/.*)?': r's3://\1\2',
    r's3[.-](?:[a-z0-9-]+\.)?amazonaws\.com/(.+)': r's3://\1',
    r'([^/]+\.blob\.core\.windows\.net/.+)': r'azure://\1',
    r'([^/]+\.dfs\.core\.windows\.net/.+)': r'azure-dl://\1',
}
"""Addresses of objects on the web, and what reads them."""


def _instead_of_http(url: str) -> str:
    """The URL of the store that a web address belongs to."""
    place = url.partition('://')[2].partition('?')[0]
    for pattern, store in _WEB.items():
        if (match := re.fullmatch(pattern, place)) is not None:
            return f' Servers of the web do not list their files; the store of this address is "{match.expand(store)}".'
    return (
        ' Servers of the web do not list their files. Copy them first, such as with `wget --recursive --no-parent '
        'URL`, and name the folder; a server of S3 is named with `endpoint_url` and s3://bucket.'
    )


def open_store(url: str | os.PathLike[str], options: StoreOptions | None = None) -> Store:
    """The store rooted at ``url``. No request is made, so a wrong bucket shows at the first use."""
    text = os.fspath(url)
    if not text:
        raise ConfigError("A store is named by a path or a URL; got ''. Pass for example '/data/x' or 's3://bucket/x'.")
    keep_secrets_of_url(text)
    scheme, _ = split_url(text)
    factory = _factories.get(scheme)
    if factory is None:
        close = difflib.get_close_matches(scheme, known_schemes(), n=1, cutoff=0.5)
        hint = f' Did you mean "{close[0]}://"?' if close else ''
        hint = _instead_of_http(text) if scheme in {'http', 'https'} else hint
        raise ConfigError(
            f'A remote is a path or a URL with a known scheme ({", ".join(known_schemes())}); got {text!r}.{hint} '
            f'Other stores are added with headrace.storage.register_store.'
        )
    return factory(text, options or StoreOptions())
