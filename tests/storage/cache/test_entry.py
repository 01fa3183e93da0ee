"""Entries of a cache: names, sets of entries, and those made late."""

from __future__ import annotations

import pytest

from headrace.errors import (
    ConfigError,
)
from headrace.storage import CacheEntry, CachePart, LazyEntry


@pytest.mark.parametrize('name', ['.headrace/ledger', '.headrace-remote', 'a/.HeadRace-index'])
def test_names_are_none_of_the_cache_itself(name):
    with pytest.raises(ConfigError, match='begins with `.headrace`'):
        CachePart(name, 1)
    with pytest.raises(ConfigError, match='begins with `.headrace`'):
        CachePart('shard', 1, packed_name=name, unpack=lambda *_: None)


def test_a_late_entry_is_the_one_it_is_made_of():
    made: list[int] = []

    def make(number: int) -> CacheEntry:
        made.append(number)
        return CacheEntry((CachePart('a', 3), CachePart('b', 4)), id=number)

    entry = make(7)
    late = LazyEntry(entry, make)
    assert (late.id, late.key, made) == (7, 'a', [7])
    assert (late.parts, late.size) == (entry.parts, 7)
    assert made == [7, 7, 7]
