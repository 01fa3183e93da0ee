"""Ranks that do not divide the global batch train and evaluate under Lightning as one rank does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers.many_ranks import compare, compare_resumed, each_world, share_caches


@each_world
def test_uneven_ranks_have_the_ids_losses_and_metrics_of_one(make_dataset: Any, tmp_path: Path, worlds: Any) -> None:
    compare('lightning', make_dataset(samples=1636, per_shard=100), tmp_path, worlds)


@pytest.mark.slow
def test_seven_ranks_go_on_with_a_checkpoint_of_eight(make_dataset: Any, tmp_path: Path) -> None:
    compare_resumed('lightning', make_dataset(samples=1636, per_shard=100), tmp_path, {'max_steps': 2})


def test_nodes_find_each_other(make_dataset: Any, tmp_path: Path) -> None:
    share_caches('lightning', make_dataset(samples=1636, per_shard=100), tmp_path)
