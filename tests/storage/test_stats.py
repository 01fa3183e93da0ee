"""Counters of caches in a forked process."""

from __future__ import annotations

import os

import pytest

from headrace.storage import stats
from headrace.storage.stats import CacheCounts, CacheStats
from tests.support.programs.together import FORK


@pytest.mark.once
def test_a_process_that_was_forked_while_another_thread_counted_counts_by_itself():
    counted = CacheStats()

    def work(_):
        counted.add(CacheCounts(shards_fetched=1))
        os._exit(counted.counts.shards_fetched)

    with stats._counting:
        child = FORK.Process(target=work, args=(0,))
        child.start()
        child.join(60)
    child.kill()
    assert child.exitcode == 1
