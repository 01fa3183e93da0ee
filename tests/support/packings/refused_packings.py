"""Datasets of documents, and packings of them that are refused."""

from __future__ import annotations

from headrace import StreamingDataLoader, Topology
from headrace.packing import PackedDataset, Packing


def dataset(document_folder, *, rank=0, ranks=1, **options) -> PackedDataset:
    packing = {'sequence_length': 8, 'token_dtype': 'uint8'}
    packing |= {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    topology = Topology(rank=rank, world_size=ranks)
    return PackedDataset(local=document_folder, packing=Packing(**packing), topology=topology, **options)


def state_of(document_folder, **options):
    loader = StreamingDataLoader(dataset(document_folder, **options), batch_size=2)
    for _ in zip(range(5), loader, strict=False):
        pass
    return loader.state_dict()
