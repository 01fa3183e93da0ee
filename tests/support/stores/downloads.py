"""Downloads from a local store, and what they received."""

from __future__ import annotations

import time

from headrace.storage import Retry

DATA = bytes(range(256)) * 100
RETRY = Retry(attempts=3, first_delay=0)


def brief_sleep(seconds: float) -> None:
    """A clock of retries that runs 25 times faster. No test counts on its pauses; spawned workers find it here."""
    time.sleep(seconds / 25)
