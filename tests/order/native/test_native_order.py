from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import Mixture, OrderConfig, StreamSize, make_order
from tests.support.orders.native_orders import blocks, nodes_used
from tests.support.orders.order_cases import mixture, mixtures, relaxed, shuffled, whole


@relaxed
@given(mixtures(), nodes_used, blocks, st.integers(0, 3), st.data())
def test_any_positions_give_what_the_whole_epoch_has_there(
    mix: Mixture, nodes: int, block: int, epoch: int, data: st.DataObject
) -> None:
    expected = whole(shuffled(mix, epoch, nodes=nodes, block=block))
    order = shuffled(mix, epoch, nodes=nodes, block=block)
    for _ in range(5):
        positions = np.array(data.draw(st.lists(st.integers(0, len(order) - 1), max_size=20)), np.int64)
        assert (order.at(positions) == expected[positions]).all()


def test_scattered_positions_in_bulk_give_what_single_calls_give() -> None:
    mix = mixture([500] * 40, [300] * 30, choose=[20_000, 40_000])
    order, positions = shuffled(mix, nodes=4), np.random.default_rng(0).integers(0, 60_000, 50_000)
    fresh = shuffled(mix, nodes=4)
    assert (order.at(positions) == whole(fresh)[positions]).all()
    assert [int(fresh.at(positions[i : i + 1])[0]) for i in range(50)] == order.at(positions[:50]).tolist()


@relaxed
@given(mixtures(), nodes_used, st.integers(0, 3), st.data())
def test_streams_and_their_earlier_draws_are_known_at_any_position(
    mix: Mixture, nodes: int, epoch: int, data: st.DataObject
) -> None:
    order = shuffled(mix, epoch, nodes=nodes)
    positions = np.array(data.draw(st.lists(st.integers(0, len(order) - 1), max_size=5)), np.int64)
    streams, draws = order.draws_at(positions)
    assert (streams == mix.streams_of(order.at(positions))).all()
    before = [order.node_draws_before(position) for position in positions.tolist()]
    found = zip(streams.tolist(), positions.tolist(), before, strict=True)
    assert draws.tolist() == [table[stream, position % nodes] for stream, position, table in found]


def test_positions_out_of_range_are_refused() -> None:
    for shuffle in (True, False):
        order = shuffled(mixture([10]), shuffle=shuffle)
        assert order.at(np.zeros(0, np.int64)).tolist() == []
        for position in (-1, 10):
            with pytest.raises(IndexError, match=str(position)):
                order.at(np.array([position]))


def test_seed_epoch_and_name_change_the_order_and_nothing_else_does() -> None:
    mix = mixture([20] * 50)
    base = whole(shuffled(mix, 0, seed=1)).tolist()
    assert whole(shuffled(mix, 0, seed=1)).tolist() == base
    assert whole(shuffled(mix, 1, seed=1)).tolist() != base
    assert whole(shuffled(mix, 0, seed=2)).tolist() != base
    assert whole(shuffled(mix, 0, seed=1 + 2**64)).tolist() != base
    renamed = Mixture.resolve([StreamSize(name='other', shard_sizes=np.full(50, 20))])
    assert whole(shuffled(renamed, 0, seed=1)).tolist() != base


def test_a_stream_keeps_its_own_sequence_beside_other_streams() -> None:
    alone, beside = mixture([20] * 50), mixture([20] * 50, [7] * 9)
    ids = whole(shuffled(beside, seed=1))
    assert ids[ids < 1000].tolist() == whole(shuffled(alone, seed=1)).tolist()


class TestStoredOrder:
    def test_one_stream_is_read_as_it_is_stored(self) -> None:
        assert whole(shuffled(mixture([3, 4]), 5, shuffle=False)).tolist() == list(range(7))

    def test_streams_follow_one_another_and_continue_in_the_next_epoch(self) -> None:
        mix = mixture([3], [4], choose=[4, 2])
        epochs = [whole(shuffled(mix, e, shuffle=False)).tolist() for e in range(3)]
        assert epochs == [[0, 1, 2, 0, 3, 4], [1, 2, 0, 1, 5, 6], [2, 0, 1, 2, 3, 4]]

    def test_canonical_nodes_read_stretches(self) -> None:
        order = shuffled(mixture([5, 5]), nodes=3, shuffle=False)
        assert [whole(order)[node::3].tolist() for node in range(3)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]

    @pytest.mark.parametrize(
        ('batching', 'nodes', 'size', 'last'),
        [
            ('random', 4, 7, 153),
            ('stratified', 4, 7, 153),
            ('stratified', 4, 8, 153),
            ('per_stream', 4, 8, 152),  # whole batches of each stream
            ('device_per_stream', 2, 8, 152),
        ],
    )
    def test_whole_streams_give_the_same_global_batches_in_each_epoch(
        self, batching: str, nodes: int, size: int, last: int
    ) -> None:
        config = OrderConfig(
            shuffle=False,
            num_canonical_nodes=nodes,
            batching=batching,
            global_batch_size=size,
            device_batches=4 if batching == 'device_per_stream' else None,
        )
        mix = mixture([60, 40, 100], [152, last])
        epochs = [whole(make_order(mix, config, epoch)).tolist() for epoch in range(3)]
        first, *others = [[sorted(ids[at : at + size]) for at in range(0, len(ids), size)] for ids in epochs]
        assert others == [first, first]
