"""Runs whose mixture changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace import Stream, StreamingDataLoader, Topology
from headrace.packing import PackedDataset, Packing
from tests.support.packings.packed_orders import sync_lane_states

SIZE, LANES, WINDOW = 16, 12, 3
Document = tuple[str, int]


class Leg(NamedTuple):
    """A part of a run, under one mixture."""

    weights: dict[str, dict[str, float]]
    steps: int
    batch: int = LANES
    options: Mapping[str, Any] = MappingProxyType({})


def tokens_of_document(document: Document, length: int) -> list[int]:
    """Tokens that say which document they are of, and the place in it."""
    first = 100_000 * (1 + 'abc'.index(document[0])) + 1000 * document[1] + 1
    return list(range(first, first + length))


def make(mixed_folder: Path, leg: Leg, *, rank: int = 0, ranks: int = 1, nodes: int = 1, change: bool = False):
    options = {'sequence_length': SIZE, 'window': WINDOW, 'lanes': LANES, 'token_dtype': 'int32', **leg.options}
    packing = {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    dataset = PackedDataset(
        streams=[Stream(local=str(mixed_folder / name), name=name, **weight) for name, weight in leg.weights.items()],
        shuffle=True,
        shuffle_seed=3,
        packing=Packing(**packing),
        topology=Topology(rank=rank, world_size=ranks, num_nodes=nodes),
        batch_size=leg.batch // ranks,
        on_mixture_change='continue' if change else 'refuse',
        **options,
    )
    return StreamingDataLoader(dataset)


def sequences(batch: dict[str, Any]) -> list[list[int]]:
    return [row[:used] for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True)]


def train(mixed_folder: Path, leg: Leg, state: Any, ranks: int, nodes: int, *, change: bool, exchange: bool = False):
    """The sequences of a leg, in their order in the run, and the states of all ranks at its end."""
    loaders = [make(mixed_folder, leg, rank=rank, ranks=ranks, nodes=nodes, change=change) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    each = [iter(loader) for loader in loaders]
    batches = [[sequences(next(found)) for found in each] for _ in range(leg.steps)]
    if exchange:
        sync_lane_states(loaders)
    order = sorted(range(ranks), key=lambda rank: (rank // (ranks // nodes)) + nodes * (rank % (ranks // nodes)))
    rows = [row for batch in batches for turn in zip(*(batch[rank] for rank in order), strict=True) for row in turn]
    return rows, [loader.state_dict() for loader in loaders]


MIXTURES: list[dict[str, dict[str, float]]] = [
    {'a': {'proportion': 2}, 'b': {'proportion': 1}, 'c': {'proportion': 0}},
    {'c': {'proportion': 1}, 'b': {'proportion': 3}, 'a': {'proportion': 0}},
    {'a': {'repeat': 1}, 'c': {'repeat': 0.5}, 'b': {'repeat': 0}},
    {'b': {'repeat': 1.5}, 'a': {'repeat': 0.7}, 'c': {'repeat': 0.3}},
]


def trained(mixed_folder: Path, leg: Leg, state: Any, *, change: bool = False) -> Any:
    """A state from the end of a leg on one rank."""
    return train(mixed_folder, leg, state, 1, 1, change=change)[1][0]
