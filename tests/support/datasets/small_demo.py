"""A small demo."""

from __future__ import annotations

from examples.demo.settings import Settings

SMALL = Settings(rows=320, checkpoint_every=5, kill_after=38)
