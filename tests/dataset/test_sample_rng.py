"""Random numbers of samples."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from headrace import StreamingDataLoader, StreamingDataset, Topology, sample_rng
from headrace.errors import ConfigError


class Augmented(StreamingDataset):
    """Each sample with two draws, one by one."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return {'id': sample['id'], 'a': sample_rng().random(), 'b': sample_rng().random()}


def draws(loader: Any) -> list[tuple[int, float, float]]:
    return [
        row
        for batch in loader
        for row in zip(batch['id'].tolist(), batch['a'].tolist(), batch['b'].tolist(), strict=True)
    ]


def test_a_sample_has_its_own_in_each_epoch_on_any_topology(make_dataset):
    folder = str(make_dataset(samples=40))
    dataset = Augmented(local=folder, shuffle=True, batch_size=8)
    loader = StreamingDataLoader(dataset)
    first, second = sorted(draws(loader)), sorted(draws(loader))
    assert [i for i, _, _ in first] == [i for i, _, _ in second] == [*range(40)]
    values = [value for row in first + second for value in row[1:]]
    assert len(set(values)) == len(values) == 160
    for ranks, workers, size in ((2, 0, 4), (4, 2, 5), (1, 3, 7)):
        found = []
        for rank in range(ranks):
            topology = Topology(rank=rank, world_size=ranks)
            again = Augmented(local=folder, shuffle=True, batch_size=size, remainder='drop')
            found += draws(StreamingDataLoader(again, topology=topology, num_workers=workers))
        assert set(found) <= set(first)
        assert len(set(found)) == len(found) == 40 // (ranks * size) * ranks * size


def test_after_a_resumption_they_are_those_of_the_uninterrupted_run(make_dataset):
    folder = str(make_dataset(samples=40))

    def make() -> StreamingDataLoader:
        return StreamingDataLoader(Augmented(local=folder, shuffle=True, batch_size=8), num_workers=1)

    loader = make()
    whole = draws(loader) + draws(loader)
    loader = make()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    assert draws(again) + draws(again) == whole[24:]


def test_another_seed_draws_others(make_dataset):
    folder = str(make_dataset(samples=16))
    one, other = (
        draws(StreamingDataLoader(Augmented(local=folder, batch_size=8, shuffle_seed=seed))) for seed in (1, 2)
    )
    assert not {a for _, a, _ in one} & {a for _, a, _ in other}


@pytest.mark.parametrize('workers', [0, 2])
def test_a_plain_loader_draws_the_same(make_dataset, workers):
    folder = str(make_dataset(samples=40))
    ours = draws(StreamingDataLoader(Augmented(local=folder, batch_size=8)))
    plain = DataLoader(Augmented(local=folder, batch_size=8), batch_size=8, num_workers=workers)
    assert sorted(draws(plain)) == ours


def test_a_batch_as_a_whole_has_none(make_dataset):
    """What it drew would depend on the rows that one rank happens to have."""
    dataset = StreamingDataset(local=str(make_dataset()), batch_size=8)

    def draw(samples):
        return sample_rng().random()

    with pytest.raises(ConfigError, match='no sample is being read'):
        next(iter(StreamingDataLoader(dataset, collate_fn=draw)))
    with pytest.raises(ConfigError, match='no sample is being read'):
        next(iter(DataLoader(Augmented(local=str(make_dataset('b')), batch_size=8), batch_size=8, collate_fn=draw)))
    iterator = iter(Augmented(local=str(make_dataset('c')), batch_size=8))
    next(iterator)
    with pytest.raises(ConfigError, match='no sample is being read'):
        sample_rng()


def test_elsewhere_there_are_none(make_dataset):
    with pytest.raises(ConfigError, match='no sample is being read'):
        sample_rng()
    dataset = Augmented(local=str(make_dataset()), batch_size=8)
    with pytest.raises(ConfigError, match='no sample is being read'):
        dataset[0]
    list(StreamingDataLoader(dataset))
    with pytest.raises(ConfigError, match='no sample is being read'):
        sample_rng()
