"""Names of shards, found among many."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.formats.indexes import dumped, numbered, parsed


@pytest.mark.parametrize('name', ['', 'x' * 255, 'x' * 256, 'x' * 70_000, 'ü', '\ud800', 'a\0b', 'shard.00001.md'])
def test_names_of_all_lengths_are_found(name: str) -> None:
    table = parsed(dumped(numbered(3)), fast_path=True)
    assert table.find(name) is None
    if 'x' in name or name == 'ü':
        shards = numbered(3)
        shards[1]['raw_data']['basename'] = name
        for quick in (True, False):
            assert parsed(dumped(shards), fast_path=quick).find(name) == 1


def test_names_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('headrace.format.names._hash_all', lambda names, starts: np.zeros(len(starts) - 1, np.uint64))
    table = parsed(dumped(numbered(9)), fast_path=True)
    assert [table.find(f'shard.{i:05}.mds.zstd') for i in range(9)] == list(range(9))
    assert table.find('absent') is None
