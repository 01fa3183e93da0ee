"""Metrics are tested where torchmetrics is."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = ['test_per_stream.py', 'test_metrics_padding.py'] if find_spec('torchmetrics') is None else []
