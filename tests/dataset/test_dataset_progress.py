"""The epoch of a dataset, shared with workers of a plain DataLoader."""

from __future__ import annotations

from headrace.dataset.progress import Progress


def test_progress_counts_passes_of_each_worker():
    progress = Progress()
    assert progress.fresh
    assert [progress.begin(rank=0, worker=1) for _ in range(2)] == [(0, 0), (1, 0)]
    assert progress.begin(rank=0, worker=0) == (0, 0)
    assert progress.current(rank=0) == (1, 0)
    progress.load(4, 12)
    assert progress.next(rank=0) == (4, 12)
    assert [progress.begin(rank=3, worker=0) for _ in range(2)] == [(4, 12), (5, 0)]
    assert progress.next(rank=0) == (4, 12)


def test_progress_counts_passes_of_hundreds_of_workers():
    progress = Progress()
    assert [progress.begin(rank=0, worker=worker) for worker in range(384)] == [(0, 0)] * 384
    assert progress.begin(rank=0, worker=383) == (1, 0)
