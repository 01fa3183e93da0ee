"""Plans of all ranks in MosaicML Streaming's orders."""

from __future__ import annotations

from headrace.order import OrderConfig, Topology, make_order, make_plan
from tests.support.orders.order_cases import mixture

TWO_STREAMS = mixture([40] * 5, [7] * 20)


def plans(mix, nodes, ranks, size, *, start=0, epoch=0, initial=None, remainder='repeat', **config):
    config = {'shuffle': True, 'algorithm': 'py1e', 'num_canonical_nodes': 4, 'block_size': 50, **config}
    order = make_order(mix, OrderConfig(**config), epoch)
    world = nodes * ranks
    return [
        make_plan(
            order, Topology(rank=r, world_size=world, num_nodes=nodes), global_batch_size=size, start=start,
            remainder=remainder, initial_nodes=initial,
        )
        for r in range(world)
    ]  # fmt: skip
