"""Two streams of documents whose tokens tell which document they are of, and a packed run over both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, Stream, StreamingDataLoader, Topology
from headrace.packing import PackedDataset, PackedExplanation, Packing

SIZE = 16
LENGTHS = {'code': [3, 5, 20, 7, 0, 1, 34, 12, 9, 2, 16], 'prose': [4, 14, 6, 2, 11, 8, 40, 1, 3]}
"""Tokens of each document."""

FIRST = {'code': 0, 'prose': len(LENGTHS['code'])}
"""The id of each stream's first document."""


def tokens_of(sample_id: int) -> list[int]:
    """The tokens of a document."""
    length = [*LENGTHS['code'], *LENGTHS['prose']][sample_id]
    return list(range(sample_id * 1000 + 1, sample_id * 1000 + 1 + length))


def write_streams(folder: Path) -> Path:
    """Shards of both streams, some documents in each."""
    for name, lengths in LENGTHS.items():
        with MDSWriter(out=str(folder / name), columns={'tokens': 'bytes'}, size_limit=300) as writer:
            for number in range(len(lengths)):
                writer.write({'tokens': np.array(tokens_of(FIRST[name] + number), np.int32).tobytes()})
    return folder


def packed(folder: Path, *, rank: int = 0, ranks: int = 1, nodes: int = 1, batch: int = 4, **options: Any):
    """A loader of a run over both streams."""
    packing = {'sequence_length': SIZE, 'window': 3, 'token_dtype': 'int32', 'lanes': 4}
    packing |= {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    of_loader = {
        key: options.pop(key) for key in list(options) if key in ('num_workers', 'mark_streams', 'fixed_epoch')
    }
    dataset = PackedDataset(
        streams=[Stream(local=str(folder / name), name=name) for name in LENGTHS],
        shuffle=True,
        shuffle_seed=5,
        packing=Packing(**packing),
        topology=Topology(rank=rank, world_size=ranks, num_nodes=nodes),
        **options,
    )
    return StreamingDataLoader(dataset, batch_size=batch // ranks, **of_loader)


def told(explanation: PackedExplanation) -> list[list[int]]:
    """The tokens of each sequence, as an explanation and the documents themselves say them."""
    rows: dict[int, list[int]] = {position: [] for position in explanation.sequences.positions.tolist()}
    columns = explanation.columns()
    for position, sample_id, begin, end, offset in zip(
        *(columns[name] for name in ('position', 'id', 'begin', 'end', 'offset')), strict=True
    ):
        assert len(rows[position]) == offset
        rows[position] += tokens_of(sample_id)[begin:end]
    return list(rows.values())


def unpadded(batch: dict[str, Any]) -> list[list[int]]:
    """The tokens of each sequence of a batch."""
    return [row[:used] for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True)]
