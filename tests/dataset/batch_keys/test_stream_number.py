"""The stream of each row of a batch."""

from __future__ import annotations

import pytest
import torch

from headrace import PADDING, STREAM, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError
from tests.support.orders.counted_streams import counted_dataset, stream_of


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('remainder', ['repeat', 'exact'])
def test_a_batch_says_the_stream_of_each_row(counted_remote, workers, remainder):
    data = counted_dataset(counted_remote[0], batch_size=4, remainder=remainder)
    loader = StreamingDataLoader(data, num_workers=workers, mark_streams=True, topology=Topology(rank=1, world_size=4))
    for batch in loader:
        assert batch[STREAM].dtype == torch.int64
        assert batch[STREAM].tolist() == loader.own_streams.tolist()
        assert [data.streams[s].name for s in batch[STREAM].tolist()] == [stream_of(i) for i in batch['id'].tolist()]
        assert (PADDING in batch) == (remainder == 'exact')


def test_a_single_stream_is_number_0(make_dataset):
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset()), batch_size=30), mark_streams=True)
    batches = list(loader)
    assert [batch[STREAM].tolist() for batch in batches] == [[0] * 30] * 3 + [[0] * 10]
    assert loader.stats().stream_samples == {'stream_0': 100}
    assert loader.mix() == {'stream_0': (100, 100.0)}


def test_a_column_with_the_name_of_the_mark_is_refused(tmp_path):
    from headrace import MDSWriter

    with MDSWriter(out=str(tmp_path), columns={STREAM: 'int'}) as writer:
        writer.write({STREAM: 1})
    data = StreamingDataset(local=str(tmp_path), batch_size=1)
    with pytest.raises(ConfigError, match='own_streams'):
        StreamingDataLoader(data, mark_streams=True)
    assert next(iter(StreamingDataLoader(data)))[STREAM].tolist() == [1]
