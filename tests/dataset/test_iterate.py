"""A pass over a dataset by a plain DataLoader."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from headrace import StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError


def test_a_plain_torch_loader_reads_each_epoch_once(make_dataset):
    folder = make_dataset('d', 48)
    ours = StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=4, shuffle=True))
    expected = [[batch['id'].tolist() for batch in ours] for _ in range(3)]
    for workers, persistent in [(0, False), (2, False), (2, True)]:
        dataset = StreamingDataset(local=str(folder), batch_size=4, shuffle=True)
        plain = DataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=persistent)
        assert [[batch['id'].tolist() for batch in plain] for _ in range(3)] == expected
        state = dataset.state_dict(8, True)
        assert (state['epoch'], state['sample_in_epoch']) == (2, 8)
        dataset.load_state_dict(state)
        assert [batch['id'].tolist() for batch in plain] == expected[2][2:]


@pytest.mark.parametrize('workers', [0, 1])
def test_plain_loaders_of_one_dataset_in_turns_are_refused(make_dataset, workers: int):
    dataset = StreamingDataset(local=str(make_dataset('d', 96)), batch_size=4)
    first, second = (DataLoader(dataset, batch_size=4, num_workers=workers) for _ in range(2))
    with pytest.raises(ConfigError, match='two loaders read the same one in turns'):
        list(zip(first, second, strict=True))
