"""Says that a server does not answer, once for each outage, while transfers from it wait or are tried again."""

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
        self._answered: dict[tuple[str, Callable[[], float]], float] = {}

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
        outage = self._outage(key, since, now)
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

    def waiting(self, what: str, url: str, *, clock: Callable[[], float], since: float) -> float:
        """Warn if a request has waited for `SILENCE`, its server has answered no other one, and nobody has said so.

        Args:
            what: What waits: "Downloading s3://b/k".
            url: Of the object.
            clock: Seconds.
            since: When the last byte came, or the transfer began.

        Returns:
            Seconds until the next call is due.
        """
        key, now = (_server(url), clock), clock()
        silence = now - max(since, self._answered.get(key, since))
        if silence < SILENCE:
            return SILENCE - silence
        outage = self._outage(key, now - silence, now)
        if not outage.is_told:
            outage.is_told = True
            logger.warning(
                '%s has received nothing for %.1f s, and waits on until its time-out (`download_timeout`, or '
                '`connect_timeout` of `store_options`). Other transfers from %s may wait, too, and are not named.',
                what,
                silence,
                key[0],
            )
        return SILENCE

    def listener(self, url: str, clock: Callable[[], float]) -> Callable[[], float]:
        """A function for the moments at which bytes come from a server: it notes them, and returns the time."""
        key = _server(url), clock

        def heard() -> float:
            now = self._answered[key] = clock()
            return now

        return heard

    def ended(self, url: str, clock: Callable[[], float]) -> None:
        """Bytes came from a server."""
        key = _server(url), clock
        self._answered[key] = clock()
        self._outages.pop(key, None)

    def _outage(self, key: tuple[str, Callable[[], float]], since: float, now: float) -> _Outage:
        outage = self._outages.setdefault(key, _Outage(since, now))
        if now - outage.last > FORGOTTEN:
            outage = self._outages[key] = _Outage(since, now)
        outage.last = now
        return outage


def _server(url: str) -> str:
    """The part of a store that fails as a whole: a bucket, a host, or a folder."""
    scheme, rest = split_url(url)
    return f'{scheme}://{rest.partition("/")[0]}' if scheme else url.rpartition('/')[0]


outages: Final = Outages()
"""Of this process."""
