"""Asking remotes, at the start, which version of their index they have.

One request for each remote, in bounded time. A remote that does not answer is no error: a run whose data are all cached
starts without a network, with a warning.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.redaction import logger_of
from headrace.storage.resolve import local_path

if TYPE_CHECKING:
    from headrace.storage.protocol import ObjectInfo, Store

__all__ = ['IndexCheck', 'process_start']

ANSWER_TIMEOUT: Final = 3.0
"""Seconds for which a remote's answer is waited for, the time of its client's first connection included."""

_log = logger_of(__name__)


class IndexCheck:
    """The requests of a dataset's streams to their remotes when it is opened. Thread-safe."""

    def __init__(self, *, since: float | None = None) -> None:
        """Take the time from which on the answer that another process of this machine got is good enough.

        Args:
            since: Seconds of `time.time`; None: now.
        """
        self.since = time.time() if since is None else since
        self._silent = set[str]()
        self._unanswered: list[str] = []
        self._lock = threading.Lock()

    def ask(self, store: Store, name: str) -> ObjectInfo | None:
        """The index, as a store describes it; None, with a note for the warning, without an answer in time."""
        if local_path(store.url) is not None:
            return self._attempt(store, name)
        server = '/'.join(store.url.split('/', 3)[:3])
        if server in self._silent:
            self._note(store, 'its server did not answer for another stream')
            return None
        answers: list[ObjectInfo | None] = []
        # A daemon, so that a network that hangs keeps nobody.
        thread = threading.Thread(
            target=lambda: answers.append(self._attempt(store, name)), name='headrace-ask', daemon=True
        )
        thread.start()
        thread.join(ANSWER_TIMEOUT)
        if not answers:
            self._silent.add(server)
            self._note(store, f'no answer within {ANSWER_TIMEOUT:g} s')
            return None
        return answers[0]

    def warn(self) -> None:
        """Log one warning about all remotes that gave no answer."""
        with self._lock:
            unanswered, self._unanswered = self._unanswered, []
        if unanswered:
            _log.warning(
                'Could not ask %d remote(s) whether their data have changed; continuing with the cached indexes. '
                'The first: %s',
                len(unanswered),
                unanswered[0],
            )

    def _attempt(self, store: Store, name: str) -> ObjectInfo | None:
        try:
            return store.head(name)
        except Exception as error:  # a client may raise anything, and the cached index is as good as before
            self.unanswered(store, error)
            return None

    def unanswered(self, store: Store, error: Exception) -> None:
        """Note for the warning why the index of a store could not be compared."""
        known = isinstance(error, HeadraceError)
        self._note(store, f'{type(error).__name__}: {error}' if known else repr(error))

    def _note(self, store: Store, why: str) -> None:
        with self._lock:
            self._unanswered.append(f'{store.url}: {why}')


def process_start() -> float:
    """When this process began, in seconds of `time.time`; where the system does not say, when headrace was imported.

    A pause between two readings of clocks makes it earlier, never later: ranks that start together share one answer.
    """
    now = time.time()
    try:
        ticks = int(Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19])
        return now - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf('SC_CLK_TCK')
    except (AttributeError, OSError, ValueError, IndexError):  # no Linux
        return _IMPORTED


_IMPORTED: Final = time.time()
