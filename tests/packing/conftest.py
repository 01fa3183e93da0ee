"""Fixtures of packing tests."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from headrace import (
    MDSWriter,
    StreamingDataset,
)
from tests.support.packings.changed_mixtures import (
    tokens_of_document,
)
from tests.support.packings.packed_orders import write
from tests.support.packings.packed_streams import write_streams


@pytest.fixture(scope='module')
def document_folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp('documents')
    with MDSWriter(out=str(path), columns={'tokens': 'bytes', 'id': 'int'}) as writer:
        for number in range(12):
            writer.write({'tokens': bytes(range(1, 6)), 'id': number})
    return str(path)


@pytest.fixture(scope='module')
def many_documents(tmp_path_factory) -> tuple[str, list[int]]:
    draw = random.Random(3)
    lengths = [draw.choice([0, 1, 2, 3, 5, 8, 13, 21, 40]) for _ in range(97)]
    return write(tmp_path_factory.mktemp('documents'), lengths), lengths


@pytest.fixture(scope='module')
def damaged_documents(tmp_path_factory) -> tuple[str, list[int]]:
    """Documents of which the third shard is cut short, and their lengths, 0 for those that are in it."""
    lengths = [20] * 90
    folder = write(tmp_path_factory.mktemp('damaged'), lengths)
    shards = StreamingDataset(local=folder).shards
    shard = Path(folder, shards[2].files[0].raw.basename)
    shard.write_bytes(shard.read_bytes()[:-1])
    first = sum(info.samples for info in shards[:2])
    lengths[first : first + shards[2].samples] = [0] * shards[2].samples
    return folder, lengths


@pytest.fixture(scope='module')
def explained_folder(tmp_path_factory) -> Path:
    return write_streams(tmp_path_factory.mktemp('streams'))


@pytest.fixture(scope='module')
def counted_folder(tmp_path_factory) -> Path:
    return write_streams(tmp_path_factory.mktemp('streams'))


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> tuple[Path, dict[str, list[int]]]:
    """Folders of streams, and the tokens of their documents."""
    mixed_folder, draw = tmp_path_factory.mktemp('streams'), random.Random(11)
    sizes = {'a': 37, 'b': 22, 'c': 53}
    lengths = {name: [draw.choice([0, 1, 3, 5, 8, 21, 40]) for _ in range(size)] for name, size in sizes.items()}
    for name, of_stream in lengths.items():
        with MDSWriter(out=str(mixed_folder / name), columns={'tokens': 'bytes'}, size_limit=700) as writer:
            for number in range(len(of_stream)):
                writer.write(
                    {'tokens': np.array(tokens_of_document((name, number), of_stream[number]), np.int32).tobytes()}
                )
    return mixed_folder, lengths
