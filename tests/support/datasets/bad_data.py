"""Shards with samples that cannot be read, and a loader over them whose batches are held against the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headrace import BAD_SAMPLE, MDSWriter, StreamingDataLoader, StreamingDataset, Topology

SAMPLES, PER_SHARD = 60, 10
CORRUPT, ABSENT, TRUNCATED = 1, 3, 4
SINGLE = 57
"""One sample that contradicts itself, in a shard whose others can be read."""
LIMIT = 432
BAD = {*range(10, 20), *range(30, 50), SINGLE}


def shard_of(folder: Path, number: int) -> Path:
    return folder / f'shard.{number:05}.mds'


def write_texts(folder: Path, samples: int = SAMPLES) -> Path:
    columns = {'id': 'int', 'text': 'str'}
    # With one sample more than ten of 23 bytes a shard would be too large.
    with MDSWriter(out=str(folder), columns=columns, size_limit=LIMIT, exist_ok=True) as writer:
        for number in range(samples):
            writer.write({'id': number, 'text': f'text {number:02}'})
    assert len(list(folder.glob('*.mds'))) == samples // PER_SHARD
    return folder


def damage(folder: Path) -> Path:
    """Make the samples `BAD` impossible to read, each kind in its own way."""
    corrupt = shard_of(folder, CORRUPT)
    corrupt.write_bytes(b'\xff' * corrupt.stat().st_size)
    shard_of(folder, ABSENT).unlink()
    truncated = shard_of(folder, TRUNCATED)
    truncated.write_bytes(truncated.read_bytes()[:-5])
    single = shard_of(folder, SINGLE // PER_SHARD)
    data = bytearray(single.read_bytes())
    at = data.index(f'text {SINGLE}'.encode())
    data[at] = 0xFF  # no UTF-8
    single.write_bytes(data)
    return folder


class Own(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        return dict(super().__getitem__(at))


def make(
    remote: Path,
    local: Path,
    topology: Topology | None = None,
    workers: int = 0,
    *,
    cls: Any = StreamingDataset,
    global_batch_size: int = 12,
    on_bad_sample: Any = 'skip',
    loader: Any = None,
    **options: Any,
) -> StreamingDataLoader:
    topology = topology or Topology()
    dataset = cls(
        remote=str(remote),
        local=str(local),
        batch_size=global_batch_size // topology.replicas,
        on_bad_sample=on_bad_sample,
        topology=topology,
        **({'shuffle': True, 'num_canonical_nodes': 2} | options),
    )
    return StreamingDataLoader(dataset, num_workers=workers, **(loader or {}))


def planned(loader: StreamingDataLoader) -> list[int]:
    """Ids of the rows of the batch handed out last."""
    plan, number = loader.handed_out
    return plan.ids(number).tolist()


def checked(loader: StreamingDataLoader, bad: set[int] = BAD) -> Iterator[dict[str, Any]]:
    """The batches of a pass, each held against what the plan says of it."""
    for batch in loader:
        ids = planned(loader)
        mark = batch[BAD_SAMPLE]
        assert (mark.dtype, mark.shape) == (torch.bool, (len(ids),))
        assert mark.tolist() == [i in bad for i in ids]
        assert loader.own_bad_rows.tolist() == mark.tolist()
        for sample_id, read, text, is_bad in zip(ids, batch['id'].tolist(), batch['text'], mark.tolist(), strict=True):
            assert read not in bad if is_bad else read == sample_id
            assert text == f'text {read:02}'
        yield batch
