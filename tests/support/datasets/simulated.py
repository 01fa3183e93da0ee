"""Simulated runs of small configurations."""

from __future__ import annotations

SHARDS, SAMPLES = 8, 320
