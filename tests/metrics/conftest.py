"""Metrics are tested where torchmetrics is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from tests.support.trainers.metered import Clock

collect_ignore = ['test_per_stream.py'] if find_spec('torchmetrics') is None else []


@pytest.fixture
def loader(make_dataset: Any, tmp_path: Path) -> StreamingDataLoader:
    streams = [
        Stream(remote=str(make_dataset(name, 50)), local=str(tmp_path / 'cache' / name), name=name)
        for name in ('code', 'odd "name"\n')
    ]
    return StreamingDataLoader(StreamingDataset(streams=streams, batch_size=10))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_loader(make_dataset):
    folders = {name: make_dataset(name, 50, first=first) for name, first in (('a', 0), ('b', 1000))}

    def make(topology: Topology | None = None, **options) -> StreamingDataLoader:
        topology = topology or Topology()
        streams = [
            Stream(local=str(folder), name=name, proportion=weight)
            for (name, folder), weight in zip(folders.items(), (0.4, 0.6), strict=True)
        ]
        data = StreamingDataset(streams=streams, shuffle=True, batch_size=10 // topology.replicas)
        return StreamingDataLoader(data, topology=topology, **options)

    return make
