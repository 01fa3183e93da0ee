"""Each shard has one keeper, on which all nodes agree; none keeps more than its limit allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cache.ownership import (
    KEPT,
    PASSING,
    Ownership,
    SharedShards,
    hash_of,
    room_to_keep,
)

NODES = [(f'127.0.0.{number + 2}', 7207) for number in range(8)]


def shards_of(sizes: list[int], stream: str = 'x') -> SharedShards:
    return SharedShards.of(stream, map(str, range(len(sizes))), np.array(sizes, np.int64))


def keepers(ownership: Ownership, count: int, stream: str = 'x') -> list[tuple[str, int] | None]:
    return [ownership.keeper(hash_of(stream, str(number))) for number in range(count)]


def slow_keepers(sizes: list[int], rooms: dict[tuple[str, int], float]) -> list[tuple[str, int] | None]:
    """The same by rounds of single shards: a node that has once refused a shard takes no others."""
    left = {node: room_to_keep(room, max(sizes)) for node, room in rooms.items()}
    scores = [Ownership(rooms, shards_of(sizes)).scores(hash_of('x', str(number))) for number in range(len(sizes))]
    found: dict[int, tuple[str, int]] = {}
    waiting = list(range(len(sizes)))
    while waiting and left:
        choices = {shard: max(left, key=lambda node: scores[shard][node]) for shard in waiting}
        waiting = []
        for node in list(left):
            for shard in sorted((s for s in choices if choices[s] == node), key=lambda s: -scores[s][node]):
                if node in left and sizes[shard] <= left[node]:
                    left[node] -= sizes[shard]
                    found[shard] = node
                else:
                    left.pop(node, None)
                    waiting.append(shard)
    return [found.get(shard) for shard in range(len(sizes))]


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=40),
    st.lists(st.one_of(st.just(math.inf), st.integers(0, 200)), min_size=1, max_size=8),
)
def test_a_shard_goes_to_the_node_that_scores_it_highest_and_has_room(sizes, rooms):
    limits = dict(zip(NODES, rooms, strict=False))
    ownership = Ownership(limits, shards_of(sizes))
    found = keepers(ownership, len(sizes))
    assert found == slow_keepers(sizes, limits)
    for node, room in limits.items():
        kept = sum(size for size, keeper in zip(sizes, found, strict=True) if keeper == node)
        assert ownership.kept_bytes(node) == kept <= room_to_keep(room, max(sizes))
    reordered = Ownership(dict(sorted(limits.items(), reverse=True)), shards_of(sizes))
    assert keepers(reordered, len(sizes)) == found


def test_without_limits_nodes_have_equal_shares():
    found = keepers(Ownership(dict.fromkeys(NODES, math.inf), shards_of([1] * 8000)), 8000)
    assert all(found.count(node) in range(900, 1100) for node in NODES)


def test_caches_that_hold_the_data_once_keep_nearly_all_of_them():
    sizes = [100] * 4000
    found = keepers(Ownership(dict.fromkeys(NODES, 100 * 4000 / 8), shards_of(sizes)), 4000)
    assert sum(keeper is not None for keeper in found) >= KEPT * 4000 - len(NODES)


def test_a_larger_cache_keeps_more():
    ownership = Ownership({NODES[0]: 400, NODES[1]: 4000}, shards_of([10] * 300))
    assert ownership.kept_bytes(NODES[0]) == 350
    assert ownership.kept_bytes(NODES[1]) == 300 * 10 - 350


def test_a_node_that_leaves_moves_only_its_shards():
    shards = shards_of([1] * 500)
    before = keepers(Ownership(dict.fromkeys(NODES, math.inf), shards), 500)
    after = keepers(Ownership(dict.fromkeys(NODES[1:], math.inf), shards), 500)
    assert all(new == old for new, old in zip(after, before, strict=True) if old != NODES[0])


def test_the_order_of_a_shard_begins_with_its_keeper_and_goes_on_by_score():
    shards = shards_of([10] * 100)
    ownership = Ownership(dict.fromkeys(NODES, 150), shards)
    displaced = 0
    for shard in shards.hashes.tolist():
        scores, order, keeper = ownership.scores(shard), ownership.order(shard), ownership.keeper(shard)
        others = [node for node in order if node != keeper]
        assert others == sorted(others, key=lambda node: -scores[node])
        assert keeper in {None, order[0]}
        displaced += keeper not in {None, max(NODES, key=lambda node: scores[node])}
    assert displaced


def test_shards_of_other_data_are_of_the_node_that_scores_them_highest():
    ownership = Ownership(dict.fromkeys(NODES, 0), shards_of([10]))
    assert ownership.keeper(hash_of('x', '0')) is None
    other = hash_of('y', '0')
    assert ownership.keeper(other) == ownership.order(other)[0]


@pytest.mark.parametrize(
    ('limit', 'kept'), [(math.inf, math.inf), (1000, KEPT * 1000), (100, 100 - PASSING * 10), (9, 0)]
)
def test_the_largest_shards_have_room_beside_those_that_are_kept(limit, kept):
    assert room_to_keep(limit, 10) == kept


def test_shards_of_several_streams_count_once():
    one, other = shards_of([1, 2]), shards_of([3], 'y')
    joined = SharedShards.joined([one, other, one])
    assert sorted(joined.sizes.tolist()) == [1, 2, 3]
    assert joined.are_same(SharedShards.joined([other, one]))
    assert not joined.are_same(one)
