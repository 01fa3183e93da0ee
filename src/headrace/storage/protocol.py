"""The five verbs of a store over the objects below one root.

The seam between headrace and every cloud. A backend is any object with these methods; ``headrace.testing.stores``
holds the contract suite that it must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.errors.redaction import is_secret_name, keep_secret, keep_secrets_of_url, redacted_repr

is_blocking: Final = ContextVar('is_blocking', default=True)
"""Whether a reader waits for this thread's requests; False for a prefetch. A store with few connections keeps one for
readers."""

TIMES: Final = 'connect_timeout and request_timeout'
"""The options in `store_options` that every store has, for messages."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A store's description of one object, without its bytes."""

    key: str
    """Relative to the store's root, '/'-separated."""
    size: int
    """Bytes."""
    etag: str
    """Names this version of the object; empty where the store has no such thing."""
    version: str = field(default='', compare=False)
    """Names the version for later runs, where `etag` does not tell equal content written twice, or differs between two
    mounts of one folder; empty where `etag` serves. Only `Store.head` needs to say it."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How to reach a store. The defaults are what its SDK would do by itself."""

    endpoint_url: str | None = None
    """The server, for stores that are not the vendor's own."""
    region: str | None = None
    anonymous: bool = False
    """Send unsigned requests."""
    requester_pays: bool = False
    connect_timeout: float = 10.0
    """Seconds until a connection attempt is given up."""
    read_timeout: float = 60.0
    """Seconds without a single byte until a connection counts as stalled."""
    request_timeout: float | None = None
    """Seconds until the answer to a request counts as too slow, besides those that its body takes at 1 KiB/s. By
    default 300, or twice ``read_timeout`` if that is more."""
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    """Options of one backend only; each backend documents its own and refuses others."""

    def __post_init__(self) -> None:
        keep_secrets_of_url(self.endpoint_url)
        for name, value in self.extra.items():
            if is_secret_name(name):
                keep_secret(value)

    @property
    def answer_seconds(self) -> float:
        return max(300.0, 2 * self.read_timeout) if self.request_timeout is None else self.request_timeout


@runtime_checkable
class Store(Protocol):
    """The objects below one root. Thread-safe, usable after fork, picklable while idle.

    Each call is one attempt: ``retry`` decides about a second one. Keys are '/'-separated and relative to the root;
    one that leaves the root is refused with ``ConfigError`` before any request.
    """

    @property
    def url(self) -> str:
        """The root, as the user would write it; for messages."""
        ...

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """Append an object, or ``size`` bytes of it from ``offset``, to ``out``.

        Args:
            key: The object.
            out: Receives the bytes, in order. After ``TransferError`` it holds a correct beginning.
            offset: First byte.
            size: Number of bytes, which must exist; None means to the end.
            etag: Refuse any other version than this one (``TransferError``).

        Returns:
            The version that was read, as `ObjectInfo.etag` names it; empty if the store does not say.
        """
        ...

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """Store ``size`` bytes read from ``source``; readers see the old object or the new one, nothing between."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with ``prefix`` (plain text, '' for all), in order of their keys."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object. A missing one is not an error, so a deletion may be repeated."""
        ...


def check_key(key: str) -> str:
    """Return ``key``, or raise ``ConfigError`` if it could lead outside the root or has two spellings."""
    if not key or '\0' in key or '\\' in key or not {'', '.', '..'}.isdisjoint(key.split('/')):
        raise ConfigError(
            f'An object or file name is relative to its root, with "/" between non-empty parts, none of which is '
            f'"." or "..", and without NUL and backslash; got {key!r}. Rename the file, or '
            f'correct the index.json or the call that names it.'
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix``, or raise ``ConfigError`` if keys that begin with it could lie outside the root."""
    if prefix:
        check_key(prefix.removesuffix('/') or '/')
    return prefix


def check_extra(options: StoreOptions, allowed: Iterable[str], store: str) -> None:
    """Refuse extra options that a backend does not have. `store`: the backend in messages, such as 'an S3 store'."""
    names = sorted(allowed)
    unknown = sorted(set(options.extra) - set(names))
    if unknown and names:
        raise ConfigError(
            f'Extra options of {store} are {names} (and {TIMES} in `store_options`); got {unknown}. Remove or correct '
            f'them.'
        )
    if unknown:
        raise ConfigError(
            f'{store[0].upper()}{store[1:]} has no extra options (but {TIMES} in `store_options`); got {unknown}. '
            f'Remove them.'
        )


def count_option(options: StoreOptions, name: str, default: int) -> int:
    """An extra option that is a number from 1."""
    count = options.extra.get(name, default)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f'{name} of a store is a number from 1; got {count!r}. Correct it.')
    return count
