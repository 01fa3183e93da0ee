"""Ranks find out what the others have, and agree on it."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from headrace.dataset import ranks
from headrace.dataset.ranks import decided_by_first, gather_of_ranks, gathered, meet_in_group
from tests.support.trainers.fake_world import fake_world


def test_a_process_without_a_group_is_alone() -> None:
    assert (gathered('a'), gather_of_ranks(), decided_by_first(lambda: 3)) == (['a'], None, 3)


def test_a_rank_that_does_not_come_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = HashStore()
    monkeypatch.setattr(dist.distributed_c10d, '_get_default_store', lambda: store)
    monkeypatch.setattr(ranks, '_WAITS', (0.01, 0.01))
    assert meet_in_group('127.0.0.2', 'x') is None
    with fake_world(0, 3):
        assert meet_in_group('127.0.0.2', 'first') == (['127.0.0.2'], 'first')
    with fake_world(2, 3):
        assert meet_in_group('127.0.0.4', 'second') == (['127.0.0.2', '127.0.0.4'], 'first')
    assert 'Ranks [1] have not read anything yet: `peers` waits for them' in caplog.text
    assert 'Ranks [1, 2] have not read anything yet: `peers` leaves them out until the next pass' in caplog.text
    caplog.clear()
    with fake_world(1, 3):
        assert meet_in_group('127.0.0.2', 'third') == (['127.0.0.2', '127.0.0.2', '127.0.0.4'], 'first')
    assert not caplog.text
