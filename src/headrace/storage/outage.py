"""Says that a server does not answer, once for each outage, while transfers from it are tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.redaction import logger_of
from headrace.storage.resolve import split_url

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ['SILENCE', 'Outages', 'outages']

logger = logger_of(__name__)

SILENCE: Final = 3.0
"""Seconds without a byte after which a user is told."""
FORGOTTEN: Final = 600.0
"""Seconds after the last failure, when the next one is of another outage."""


@dataclass(slots=True)
class _Outage:
    since: float
    last: float
    is_told: bool = False


class Outages:
    """The servers that do not answer, of one process. A transfer that gets further ends its server's outage."""

    def __init__(self) -> None:
        self._outages: dict[tuple[str, Callable[[], float]], _Outage] = {}

    def failed(
        self, what: str, url: str, error: BaseException, *, clock: Callable[[], float], since: float, delay: float
    ) -> None:
        """Note a failure; warn if nothing comes for `SILENCE`, and nobody has said so.

        Args:
            what: What failed: "Downloading s3://b/k".
            url: Of the object.
            error: Why.
            clock: Seconds.
            since: When the last byte came, or the transfer began.
            delay: Seconds until the next attempt.
        """
        key, now = (_server(url), clock), clock()
        outage = self._outages.get(key)
        if outage is None or now - outage.last > FORGOTTEN:
            outage = self._outages[key] = _Outage(since, now)
        outage.last = now
        if now + delay - outage.since >= SILENCE and not outage.is_told:
            outage.is_told = True
            logger.warning(
                '%s has failed for %.1f s, and is tried again in %.1f s. Other transfers from %s wait, too, and are '
                'not named. The last error: %s',
                what,
                now - outage.since,
                delay,
                key[0],
                error,
            )

    def ended(self, url: str, clock: Callable[[], float]) -> None:
        """Bytes came from a server."""
        if self._outages:
            self._outages.pop((_server(url), clock), None)


def _server(url: str) -> str:
    """The part of a store that fails as a whole: a bucket or a host."""
    scheme, rest = split_url(url)
    return f'{scheme}://{rest.partition("/")[0]}' if scheme else url


outages: Final = Outages()
"""Of this process."""
