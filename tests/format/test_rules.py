"""Rules for shards, applied to all shards of a table at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.formats.indexes import dumped, numbered, outcome

WRONG = [
    {'samples': 10**6},
    {'samples': 10**17},
    {'samples': 10**30},
    {'samples': -0.0},
    {'samples': -1},
    {'samples': 1e3},
    {'samples': '10'},
    {'raw_data': {'basename': 'shard.00003.mds', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': '../x', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': '/x', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x/', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': '', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'a/./b', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'a/index.json', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 1 << 32, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 1 << 63, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 15, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 9000, 'hashes': {'sha1': 1}}},
    {'version': 3},
    {'zip_data': None, 'compression': None, 'column_encodings': ['pkl'], 'column_sizes': [None]},
]


@pytest.mark.parametrize('change', WRONG, ids=str)
@pytest.mark.parametrize('at', [0, 5, 19])
def test_a_wrong_shard_among_many_is_refused_with_the_same_words(change: dict[str, Any], at: int) -> None:
    shards = numbered(20)
    shards[at] |= change
    kind, message = outcome(dumped(shards), fast_path=True)
    assert (kind, message) == outcome(dumped(shards), fast_path=False)
    assert 'Shard' in message


def test_the_first_wrong_shard_is_the_one_that_is_named() -> None:
    shards = numbered(20)
    shards[4]['samples'] = 10**6
    shards[9]['version'] = 3
    shards[15]['samples'] = 10**6
    assert 'Shard 4 ' in outcome(dumped(shards), fast_path=True)[1]
