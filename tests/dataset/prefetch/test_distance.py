"""The look-ahead of the prefetch."""

from __future__ import annotations

from headrace.dataset.prefetch.distance import LookAhead, look_ahead


def test_a_worker_looks_as_far_as_all_workers_together():
    assert look_ahead(100, 8, workers=3).batches == 39
    assert look_ahead(None, 64) == LookAhead(1024, 512 << 20, shards=1024)
    assert look_ahead(None, 1 << 20).batches == 8
