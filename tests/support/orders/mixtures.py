"""A mixture of streams, and loaders of it."""

from __future__ import annotations

GLOBAL_BATCH = 8
