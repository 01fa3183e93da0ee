"""A configuration to tune."""

from __future__ import annotations

TUNED_SAMPLES = 4096
