"""Batches of many documents."""

from __future__ import annotations

HUGE = {'batch': 4100, 'sequence_length': 2}  # documents of 4096 sequences are remembered in any case
