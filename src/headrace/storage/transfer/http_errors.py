"""Errors for a store's refusals: statuses of HTTP are the same everywhere, whatever SDK wraps them."""

from __future__ import annotations

import contextlib
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from headrace.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from headrace.storage.transfer.retry import BrokenTransferError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    'ANONYMOUS',
    'UNREADABLE',
    'changed',
    'error_of_status',
    'not_found',
    'seconds_to_wait',
    'unreadable',
    'why_absent',
]

ANONYMOUS = 'no credentials (anonymous)'
"""The credentials of an unsigned request, for messages."""

BUSY = frozenset({408, 425, 429})
"""Statuses below 500 that waiting may cure."""


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of clients at malformed answers: a header is missing, or is no number."""


def error_of_status(
    status: int,
    what: str,
    *,
    url: str,
    absent: Callable[[], str],
    credentials: Callable[[], str],
    remedy: str,
    retry_after: str | None = None,
) -> StorageError:
    """The exception for an answer's status.

    Args:
        status: Of the answer.
        what: The operation, its place, and the store's text, without a full stop.
        url: The object's URL.
        absent: Returns why there may be no such object. Called for 404 only.
        credentials: Names the request's credentials, without their values. Called for 401, 403 only.
        remedy: The user's fix for a refusal.
        retry_after: The answer's header of that name.
    """
    if status in {404, 410}:
        return not_found(url, absent())
    if status in {401, 403}:
        return AccessDeniedError(f'{what}. The request was made with {credentials()}. {remedy}')
    if status == 412:
        return changed(url)
    if status >= 500 or status in BUSY:
        return BrokenTransferError.at(f'{what}.', retry_after=seconds_to_wait(retry_after))
    return StorageError(f'{what}.')


def not_found(url: str, why: str) -> ObjectNotFoundError:
    """The error for an object that is not there."""
    return ObjectNotFoundError(f'No such file or directory: {url}: {why}')


def why_absent(exists: bool | None, *, container: str, server: str, name: str) -> str:
    """Why an object may not be there, without a full stop.

    Args:
        exists: Whether its container does; None if the store does not say.
        container: Such as "the bucket 'b'".
        server: Where it was looked for.
        name: Such as "the key 'k'".
    """
    if exists is None:
        return f'{server} does not say whether {container} exists'
    return f'{container} exists at {server}, but not {name}' if exists else f'{container} does not exist at {server}'


def unreadable(what: str, error: Exception, *, etag: str | None = None) -> BrokenTransferError:
    """The error for an answer that the store's client cannot read.

    Args:
        what: The operation and its place, without a full stop.
        error: The client's, one of `UNREADABLE`.
        etag: The version whose beginning has been delivered.
    """
    return BrokenTransferError.at(
        f'{what} brought an answer that breaks the rules of its service: {type(error).__name__}: {error}. Check that '
        f'the endpoint is such a service, and what lies between.',
        etag=etag,
    )


def changed(url: str, asked: str | None = None, found: str = '') -> BrokenTransferError:
    """The error for an object whose version is not the one ``asked`` for, but another that is ``found`` now."""
    versions = f', from version {asked!r} to {found!r}' if asked and found else ''
    return BrokenTransferError.at(f'{url} changed while it was being read{versions}.', changed=True)


def seconds_to_wait(header: str | None) -> float | None:
    """The seconds of a Retry-After header, which may be a number or a date; None where it says nothing."""
    if not header:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None
