"""A URL of each store that is reached by HTTP."""

from __future__ import annotations

from headrace.storage.resolve import backends

URLS = {
    # Of two schemes of one store, the first.
    backend.module: backend.example
    for backend in reversed(backends())
    if backend.example and backend.module not in {'fsspec', 'sftp'}
}
REQUEST_TIMEOUT = 0.3
"""Seconds, of the stores of `open_at`."""
