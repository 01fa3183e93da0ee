"""When to try again, and how long to wait: exponential backoff with full jitter, in bounded time.

A server that does not answer is named once for each outage, while transfers from it wait or are tried again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.errors import ConfigError, TransferError
from headrace.errors.display import count_text
from headrace.errors.redaction import logger_of
from headrace.storage.resolve import split_url

logger = logger_of(__name__)

SILENCE: Final = 3.0  # Seconds without a byte after which a user is told.
FORGOTTEN: Final = 600.0  # Seconds after the last failure, when the next one is of another outage.


class Server:
    """A part of a store that fails as a whole: a bucket, a host, or a folder. It says once that it does not answer.

    A transfer that gets further ends an outage.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name, self._clock = name, clock
        self._answered = -math.inf
        self._since: float | None = None  # begin of an outage
        self._failed = 0.0
        self._is_told = False

    def failed(self, what: str, error: BaseException, *, since: float, delay: float) -> None:
        """Note a failure; warn once if nothing comes for `SILENCE`.

        `what`: what failed: "Downloading s3://b/k". `since`: when the last byte came, or the transfer began. `delay`:
        seconds until the next attempt.
        """
        now = self._clock()
        begun = self._begin(since, now)
        if now + delay - begun >= SILENCE and not self._is_told:
            self._is_told = True
            logger.warning(
                '%s has failed for %.1f s, and is tried again in %.1f s. Other transfers from %s wait, too, and are '
                'not named. The last error: %s',
                what,
                now - begun,
                delay,
                self._name,
                error,
            )

    def waiting(self, what: str, *, since: float) -> float:
        """Warn once if a request has waited for `SILENCE`, and no other one was answered; arguments as `failed`'s.

        Returns the seconds until the next call is due.
        """
        now = self._clock()
        silence = now - max(since, self._answered)
        if silence < SILENCE:
            return SILENCE - silence
        self._begin(now - silence, now)
        if not self._is_told:
            self._is_told = True
            logger.warning(
                '%s has received nothing for %.1f s, and waits on until its time-out (`download_timeout`, or '
                '`connect_timeout` of `store_options`). Other transfers from %s may wait, too, and are not named.',
                what,
                silence,
                self._name,
            )
        return SILENCE

    def heard(self) -> float:
        """Note that bytes came; returns the time."""
        now = self._answered = self._clock()
        return now

    def ended(self) -> None:
        """Note that a transfer got further."""
        self.heard()
        self._since = None

    def _begin(self, since: float, now: float) -> float:
        """Note an outage, which began then unless one is under way; returns its begin."""
        begun = self._since
        if begun is None or now - self._failed > FORGOTTEN:
            begun = self._since = since
            self._is_told = False
        self._failed = now
        return begun


_servers: Final[dict[tuple[str, Callable[[], float]], Server]] = {}


def server_of(url: str, clock: Callable[[], float]) -> Server:
    scheme, rest = split_url(url)
    name = f'{scheme}://{rest.partition("/")[0]}' if scheme else url.rpartition('/')[0]
    return _servers.setdefault((name, clock), Server(name, clock))


T = TypeVar('T')

# Not the global generator: a user's seeded sequence must not depend on the network. Not a seeded one either: forked
# workers would then all wait for the same time.
_jitter = random.SystemRandom()


class BrokenTransferError(TransferError):
    """One attempt failed, and the store knows more about it than a message. Stores raise it to `Retry`."""

    etag: str | None = None  # The version whose beginning has been delivered.
    retry_after: float | None = None  # Seconds that the server asked to wait.
    changed: bool = False  # The version that was asked for is gone: what has been delivered is of no use.

    @classmethod
    def at(
        cls, message: str, *, etag: str | None = None, retry_after: float | None = None, changed: bool = False
    ) -> BrokenTransferError:
        """The error with its details; the constructor takes one message only, like every exception of headrace."""
        error = cls(message)
        error.etag, error.retry_after, error.changed = etag, retry_after, changed
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how long. Only ``TransferError`` is tried again: nothing else gets better by waiting."""

    attempts: int = 3
    """Failures in a row until the last one is raised; a transfer that moved forward restarts the count."""
    patience: float = 0.0
    """Seconds from the first failure in a row for which it is tried again, however many there are."""
    first_delay: float = 0.5
    """Seconds. Before retry n the wait is drawn from 0 to ``first_delay * 2**(n - 1)``."""
    max_delay: float = 20.0
    """Seconds. A longer ``Retry-After`` is obeyed if ``timeout`` leaves the time, and resets the count of failures.
    If the time is short, the wait is ``max_delay``."""
    timeout: float = 600.0
    """Seconds after the first attempt began, after which no other one begins."""
    attempt_timeout: float = 60.0
    """Seconds without a byte after which the store ends an attempt."""
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (
            self.attempts < 1
            or self.first_delay < 0
            or min(self.max_delay, self.patience, self.timeout, self.attempt_timeout) < 0
        ):
            raise ConfigError(f'Retry needs attempts >= 1 and delays, patience and timeout >= 0; got {self!r}.')

    @property
    def longest_silence(self) -> float:
        """Seconds for which a transfer that is under way may bring nothing."""
        return max(self.attempts * self.attempt_timeout, self.patience + self.attempt_timeout)

    @property
    def pauses(self) -> tuple[float, ...]:
        """Seconds to wait, one after the other, for an object that its owner is replacing."""
        return tuple(min(self.max_delay, self.first_delay * 2**number) for number in range(min(self.attempts, 5)))

    def call(
        self,
        what: str,
        attempt: Callable[[], T],
        *,
        progress: Callable[[], int] | None = None,
        on_retry: Callable[[], None] | None = None,
    ) -> T:
        """Run ``attempt`` until it succeeds. A server that is silent for seconds is warned of, once for each outage.

        Args:
            what: For messages: "Downloading s3://b/k". The last word is the object's URL.
            attempt: One try.
            progress: A number that grows when a try got further than the one before it.
            on_retry: Called before each further try.
        """
        begin = first_failure = silent_since = self.clock()
        server = server_of(what.rpartition(' ')[2], self.clock)
        tries = failures = 0
        reached = progress() if progress else 0
        while True:
            tries += 1
            try:
                result = attempt()
            except TransferError as error:
                failures += 1
                if progress and (now := progress()) > reached:
                    reached, failures, silent_since = now, 1, self.clock()
                    server.ended()
                if failures == 1:
                    first_failure = self.clock()
                elapsed = self.clock() - begin
                delay = self._delay(failures, error, self.timeout - elapsed)
                is_told_when = delay > self.max_delay and self.attempts > 1
                is_enough = (
                    failures >= self.attempts and self.clock() - first_failure >= self.patience and not is_told_when
                )
                if is_enough or elapsed + delay > self.timeout:
                    bound = f'{self.timeout:g} s'
                    if is_enough:
                        bound = f'{self.attempts} failures in a row' + f', in {self.patience:g} s' * bool(self.patience)
                    raise TransferError(
                        f'{what} failed after {count_text(tries, "attempt")} in {elapsed:.1f} s (the bound is '
                        f'{bound}). The last one: {error} If the network is slow rather than broken, raise '
                        f'`download_retry` or `download_timeout`.'
                    ) from error
                server.failed(what, error, since=silent_since, delay=delay)
            else:
                server.ended()
                return result
            if on_retry:
                on_retry()
            self.sleep(delay)
            if is_told_when:
                failures = 0

    def _delay(self, failures: int, error: TransferError, left: float) -> float:
        pause = error.retry_after if isinstance(error, BrokenTransferError) else None
        if pause is not None and pause >= self.first_delay:
            return pause if pause <= left else min(pause, self.max_delay)
        # A server that asks for no pause at all, or for less than none, would get thousands of requests.
        return _jitter.uniform(0, min(self.max_delay, self.first_delay * 2 ** (failures - 1)))
