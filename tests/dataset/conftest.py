"""Fixtures of dataset tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import (
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
)
from headrace.storage import Retry
from tests.support.datasets.bad_data import (
    damage,
    write_texts,
)
from tests.support.formats.image_folders import write_images
from tests.support.formats.pictures import picture, stored
from tests.support.orders.counted_streams import FIRST, SIZES
from tests.support.orders.mixtures import GLOBAL_BATCH


@pytest.fixture
def no_pauses(monkeypatch):
    """An object that is absent, or of another size, is asked for again at once."""
    monkeypatch.setattr(Retry, 'pauses', ())


@pytest.fixture(scope='module')
def damaged_remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(write_texts(tmp_path_factory.mktemp('bad') / 'remote'))


@pytest.fixture(scope='session')
def image_folder(tmp_path_factory):
    """40 JPEGs of 40 x 50 pixels in several shards."""
    images = [stored(picture(40, 50, number)) for number in range(40)]
    return write_images(tmp_path_factory.mktemp('images'), images, size_limit=12_000)


@pytest.fixture
def mix(make_dataset):
    """A factory of loaders over a mix of two streams, one seen 1.5 times an epoch, one three quarters."""
    folders = [make_dataset('a', 60), make_dataset('b', 80, first=1000)]

    def make(topology: Topology, workers: int, *, batch: int = GLOBAL_BATCH, **options) -> StreamingDataLoader:
        streams = [
            Stream(local=str(folders[0]), repeat=1.5, name='a'),
            Stream(local=str(folders[1]), repeat=0.75, name='b'),
        ]
        dataset = StreamingDataset(
            streams=streams, batch_size=batch // topology.replicas, shuffle=True, num_canonical_nodes=2, **options
        )
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    return make


@pytest.fixture
def counted_remote(make_dataset, tmp_path):
    """Folders of three streams, as remotes, and the bytes of their shards."""
    folders = {name: make_dataset(name, SIZES[name], first=FIRST[name]) for name in SIZES}
    sizes = sum(path.stat().st_size for folder in folders.values() for path in folder.glob('*.mds'))
    return folders, sizes
