"""Downloads from a local store, and what they received."""

from __future__ import annotations

from headrace.storage import Retry

DATA = bytes(range(256)) * 100
RETRY = Retry(attempts=3, first_delay=0)
