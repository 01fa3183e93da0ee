"""Documents, and the sequences that a slow model packs of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, StreamingDataLoader, Topology
from headrace.order.topology import World
from headrace.packing import PackedDataset, Packing
from tests.support.packings.packed_model import documents_of_lane, pieces_of_rows

SIZE = 16


def tokens_of(number: int, length: int) -> np.ndarray:
    """Tokens that tell which document they are of, and where in it."""
    return (number * 1000 + np.arange(length) + 1).astype(np.int32)


def write(folder: Path, lengths: list[int]) -> str:
    with MDSWriter(out=str(folder), columns={'tokens': 'bytes'}, size_limit=600) as writer:
        for number, length in enumerate(lengths):
            writer.write({'tokens': tokens_of(number, length).tobytes()})
    return str(folder)


def make(folder: str, *, lanes: int = 4, rank: int = 0, ranks: int = 1, nodes: int = 1, batch: int = 4, **options: Any):
    packing = {'sequence_length': SIZE, 'lanes': lanes, 'window': 3, 'token_dtype': 'int32'}
    packing |= {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    workers = {key: options.pop(key) for key in list(options) if key.endswith(('workers', 'context'))}
    dataset = PackedDataset(
        local=folder,
        shuffle=True,
        shuffle_seed=7,
        packing=Packing(**packing),
        topology=Topology(rank=rank, world_size=ranks, num_nodes=nodes),
        **options,
    )
    return StreamingDataLoader(dataset, batch_size=batch // ranks, **workers)


def sequences(loader: StreamingDataLoader, count: int | None = None) -> list[list[int]]:
    """Tokens of the sequences of some batches, without padding."""
    found: list[list[int]] = []
    for batch in itertools.islice(loader, count):
        for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True):
            assert row[used:] == [0] * (SIZE - used)
            found.append(row[:used])
    return found


def expected(folder: str, lengths: list[int], rows: int, *, lanes: int = 4, method: str = 'best_fit'):
    """The first sequences of a run."""
    dataset = make(folder, lanes=lanes).dataset
    dataset.run = dataset.run.with_defaults(World(1, lanes))

    def passes() -> Iterator[list[int]]:
        for epoch in itertools.count():
            order = dataset.run.documents.order(epoch, World(1, lanes))
            yield order.at(np.arange(len(order))).tolist()

    def of_lane(lane: int) -> Iterator[list[int]]:
        ids = documents_of_lane(lane, lanes, passes())
        known: list[int] = []
        lengths_of = (known.append(number) or lengths[number] for number in ids)
        window = max(min(3, len(lengths) // lanes), 1)
        for row in pieces_of_rows(lengths_of, SIZE, method, window, 1 + lane * window // lanes):
            yield [token for number, begin, end in row for token in tokens_of(known[number], end)[begin:].tolist()]

    each = [of_lane(lane) for lane in range(lanes)]
    return [next(each[number % lanes]) for number in range(rows)]


METHODS = ('best_fit', 'concatenate')


def unpadded(batch: dict[str, Any]) -> list[list[int]]:
    return [row[:used] for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True)]


def sync_lane_states(loaders: list[Any]) -> None:
    """Exchange the lane states of all ranks, as a collective would."""
    own: list[Any] = []
    for loader in loaders:
        loader.dataset.sync_lane_states(lambda states: own.append(states) or [])
    for loader in loaders:
        loader.dataset.sync_lane_states(lambda _: own)


def world(folder: str, ranks: int, state: Any, steps: int, *, exchange: bool, **options: Any):
    """Global batches of a run on some ranks, and the states of its ranks."""
    loaders = [make(folder, rank=rank, ranks=ranks, **options) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    each = [iter(loader) for loader in loaders]
    batches = [[unpadded(next(found)) for found in each] for _ in range(steps)]
    if exchange:
        sync_lane_states(loaders)
    # Position p of the sequence is replica p modulo the replicas'.
    rows = [row for batch in batches for turn in zip(*batch, strict=True) for row in turn]
    return rows, [loader.state_dict() for loader in loaders]
