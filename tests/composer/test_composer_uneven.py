"""Ranks that do not divide the global batch train and evaluate under Composer as one rank does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers.many_ranks import compare, compare_resumed, each_world, share_caches, trained


@each_world
def test_uneven_ranks_have_the_ids_losses_and_metrics_of_one(make_dataset: Any, tmp_path: Path, worlds: Any) -> None:
    compare('composer', make_dataset(samples=1636, per_shard=100), tmp_path, worlds)


def test_ragged_ranks_need_no_weights(make_dataset: Any, tmp_path: Path) -> None:
    """Composer weights ranks by their rows."""
    data = make_dataset(samples=1636, per_shard=100)
    one, many = (trained('composer', data, tmp_path, n, 'ragged', None)[1] for n in (1, 3))
    assert many['weight'] == pytest.approx(one['weight'], rel=1e-6)


@pytest.mark.slow
def test_seven_ranks_go_on_with_a_checkpoint_of_eight(make_dataset: Any, tmp_path: Path) -> None:
    compare_resumed('composer', make_dataset(samples=1636, per_shard=100), tmp_path, {'max_duration': '2ba'})


def test_nodes_find_each_other(make_dataset: Any, tmp_path: Path) -> None:
    share_caches('composer', make_dataset(samples=1636, per_shard=100), tmp_path)
