"""`on_bad_sample='skip'`: another sample in the place of each that cannot be read, marked, counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import (
    BAD_SAMPLE,
    PADDING,
    JSONWriter,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
    without_padding,
)
from headrace.errors import (
    CollateError,
    FormatError,
)
from tests.support.datasets.bad_data import (
    BAD,
    SAMPLES,
    SINGLE,
    Own,
    checked,
    make,
    planned,
    write_texts,
)
from tests.support.panics import PanicException

pytestmark = pytest.mark.usefixtures('no_pauses')


class Refusing(StreamingDataset):
    """Finds fault with some samples of good data."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        if sample['id'] in BAD:
            raise ZeroDivisionError(f'sample {sample["id"]} does not please')
        return sample


class Tuples(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return sample['id'], {'text': sample['text']}


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('cls', [StreamingDataset, Own])
@pytest.mark.parametrize('limit', [None, 3000])
def test_bad_rows_are_marked_and_hold_others(damaged_remote, tmp_path, workers, cls, limit):
    loader = make(damaged_remote, tmp_path, workers=workers, cls=cls, cache_limit=limit)
    for _ in range(2):
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)
    stats = loader.stats()
    assert (stats.samples, stats.bad_samples) == (2 * SAMPLES, 2 * len(BAD))


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('cls', [StreamingDataset, Own])
def test_a_batch_that_is_all_bad_holds_another_sample(damaged_remote, tmp_path, cls, shuffle):
    loader = make(damaged_remote, tmp_path, cls=cls, global_batch_size=4, shuffle=shuffle)
    batches = list(checked(loader))
    assert len(batches) == 15
    assert shuffle or any(batch[BAD_SAMPLE].all() for batch in batches)


def test_ranks_and_workers_mark_the_same_samples(damaged_remote, tmp_path):
    marked = []
    for number, (ranks, workers) in enumerate([(1, 0), (2, 0), (2, 1), (4, 0), (1, 2)]):
        found: list[set[int]] = []
        for rank in range(ranks):
            topology = Topology(rank=rank, world_size=ranks)
            loader = make(damaged_remote, tmp_path / str(number), topology, workers)
            sets = [set(np.array(planned(loader))[batch[BAD_SAMPLE].numpy()].tolist()) for batch in checked(loader)]
            found = [a | b for a, b in zip(found, sets, strict=True)] if found else sets
        marked.append(found)
    assert all(found == marked[0] for found in marked)


def world(remote, local, ranks: int, state: dict[str, Any] | None, workers: int = 0) -> Iterator[tuple[Any, ...]]:
    """Global batches of one pass: the epoch, the ids that were read, those that were bad, and the state after it."""
    loaders = [make(remote, local, Topology(rank=r, world_size=ranks), workers) for r in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    for batches in zip(*map(checked, loaders), strict=True):
        read = {i for batch in batches for i in batch['id'][~batch[BAD_SAMPLE]].tolist()}
        bad = {i for x, batch in zip(loaders, batches, strict=True)
               for i, is_bad in zip(planned(x), batch[BAD_SAMPLE].tolist(), strict=True) if is_bad}  # fmt: skip
        states = [loader.state_dict() for loader in loaders]
        assert states.count(states[0]) == ranks
        yield states[0]['epoch'], read, bad, states[0]


@pytest.mark.parametrize(('before', 'after'), [(1, 2), (2, 1), (3, 4)])
def test_a_run_continues_from_every_state(damaged_remote, tmp_path, before, after):
    whole = list(world(damaged_remote, tmp_path / 'a', before, None))
    assert set().union(*(bad for _, _, bad, _ in whole)) == BAD
    for stop in range(len(whole) - 1):
        rest = list(world(damaged_remote, tmp_path / 'b', after, whole[stop][3], workers=int(stop == 1)))
        assert [batch[:3] for batch in rest] == [batch[:3] for batch in whole[stop + 1 :]]
    assert all(BAD_SAMPLE not in str(batch[3]) for batch in whole)


# -- what is bad -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('workers', [0, 2])
def test_what_a_users_code_raises_is_bad(tmp_path, workers):
    loader = make(write_texts(tmp_path / 'good'), tmp_path / 'local', workers=workers, cls=Refusing)
    assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)


class Panicking(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        if sample_id in BAD:
            raise PanicException('no sample')
        return super().get_item(sample_id, retry)


@pytest.mark.parametrize('workers', [0, 2])
def test_a_panic_of_rust_is_an_error_of_its_sample(tmp_path, workers):
    texts = write_texts(tmp_path / 'good')
    loader = make(texts, tmp_path / 'local', workers=workers, cls=Panicking)
    assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)
    dataset = Panicking(local=str(texts), batch_size=1)
    with pytest.raises(FormatError, match='A library panicked: PanicException: no sample') as raised:
        list(StreamingDataLoader(dataset, num_workers=workers))
    assert 'While reading' in str([str(raised.value), *getattr(raised.value, '__notes__', [])])


def test_batches_that_are_no_dicts_are_not_changed(damaged_remote, tmp_path):
    loader = make(damaged_remote, tmp_path, cls=Tuples, workers=1)
    assert loader.own_bad_rows.tolist() == []
    seen = set()
    for batch in loader:
        assert len(batch) == 2
        bad = [i in BAD for i in planned(loader)]
        assert loader.own_bad_rows.tolist() == bad
        ids, columns = without_padding(batch, bad_rows=loader.own_bad_rows)
        assert columns['text'] == [f'text {i:02}' for i in ids.tolist()]
        seen.update(ids.tolist())
    assert seen == set(range(SAMPLES)) - BAD


def test_a_collate_function_gets_samples_of_its_own(damaged_remote, tmp_path):
    def collate(samples):
        return {'id': torch.tensor([sample.pop('id') for sample in samples]), 'text': [s['text'] for s in samples]}

    for cls in (StreamingDataset, Own):
        loader = make(
            damaged_remote, tmp_path / cls.__name__, cls=cls, global_batch_size=6, loader={'collate_fn': collate}
        )
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)


def test_lines_and_streams_whose_columns_differ(tmp_path):
    with JSONWriter(out=str(tmp_path / 'a'), columns={'id': 'int'}) as writer:
        for number in range(10):
            writer.write({'id': number})
    with MDSWriter(out=str(tmp_path / 'b'), columns={'id': 'int'}) as writer:
        for number in range(10, 20):
            writer.write({'id': number})
    file = tmp_path / 'a' / 'shard.00000.json'
    file.write_bytes(file.read_bytes().replace(b'{"id": 3}', b'{"id": !}').replace(b'{"id":3}', b'{"id":!}'))
    streams = [Stream(local=str(tmp_path / name), name=name) for name in 'ab']
    loader = StreamingDataLoader(StreamingDataset(streams=streams, batch_size=4, shuffle=True, on_bad_sample='skip'))
    for batch in loader:
        assert batch[BAD_SAMPLE].tolist() == [i == 3 for i in planned(loader)]
        assert 3 not in batch['id'].tolist()
    assert dict(loader.stats().stream_bad_samples) == {'a': 1, 'b': 0}


def test_an_image_that_cannot_be_decoded(tmp_path):
    image = pytest.importorskip('PIL.Image')
    with MDSWriter(out=str(tmp_path), columns={'id': 'int', 'image': 'png'}) as writer:
        for number in range(6):
            writer.write({'id': number, 'image': image.new('L', (9, 9), number) if number != 4 else b'no image'})

    def collate(samples):
        return {'id': torch.tensor([s['id'] for s in samples]), 'pixel': [s['image'].getpixel((0, 0)) for s in samples]}

    dataset = StreamingDataset(local=str(tmp_path), batch_size=3, on_bad_sample='skip')
    first, second = StreamingDataLoader(dataset, collate_fn=collate)
    assert (first['pixel'], first[BAD_SAMPLE].tolist()) == ([0, 1, 2], [False] * 3)
    assert (second['pixel'], second[BAD_SAMPLE].tolist()) == ([3, 3, 5], [False, True, False])
    with pytest.raises(CollateError):  # images are no batch, bad or good
        next(iter(StreamingDataLoader(dataset)))


def test_padding_that_repeats_a_bad_sample_is_marked_twice_and_counts_once(damaged_remote, tmp_path):
    kept = []
    for rank in range(7):
        topology = Topology(rank=rank, world_size=7)
        loader = make(damaged_remote, tmp_path, topology, global_batch_size=7, remainder='exact', shuffle=False)
        count = 0
        for batch in checked(loader):
            assert list(batch) == ['id', 'text', PADDING, BAD_SAMPLE]
            kept += without_padding(batch)['id'].tolist()
            count += int((batch[BAD_SAMPLE] & ~batch[PADDING]).sum())
        assert loader.stats().bad_samples == count
    assert sorted(kept) == sorted(set(range(SAMPLES)) - BAD)


@pytest.mark.parametrize('remainder', ['repeat', 'exact'])
def test_samples_of_a_plain_dataloader_are_marked(damaged_remote, tmp_path, remainder):
    dataset = make(damaged_remote, tmp_path, global_batch_size=8, remainder=remainder).dataset
    found: set[int] = set()
    for batch in DataLoader(dataset, batch_size=8, num_workers=2):
        assert batch[BAD_SAMPLE].dtype is torch.bool
        assert (PADDING in batch) == (remainder == 'exact')
        found.update(without_padding(batch)['id'].tolist())
    assert found == set(range(SAMPLES)) - BAD
    by_itself = make(damaged_remote, tmp_path / 'again', remainder=remainder).dataset
    order = by_itself.order(0).at(np.arange(SAMPLES)).tolist()
    assert [sample[BAD_SAMPLE] for sample in by_itself] == [i in BAD for i in order]


def test_each_bad_shard_and_sample_is_named_once(damaged_remote, tmp_path, caplog):
    loader = make(damaged_remote, tmp_path)
    with caplog.at_level(logging.WARNING, 'headrace'):
        for _ in range(2):
            list(loader)
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 4
    assert messages[0].startswith(f'Sample {SINGLE}, row 7 of shard shard.00005.mds of stream stream_0, cannot be read')
    assert f'({damaged_remote}/shard.00005.mds): ShardError: ' in messages[0]
    for message, number, cause in zip(
        messages[1:], (1, 3, 4), ('ShardError', 'ObjectNotFoundError', 'ChecksumError'), strict=True
    ):
        assert message.startswith(f'Shard shard.0000{number}.mds of stream stream_0 cannot be read, and is skipped')
        assert f'with its 10 samples, of which {number}' in message
        assert f'({damaged_remote}/shard.0000{number}.mds): {cause}: ' in message


def test_of_many_bad_samples_only_some_are_named(tmp_path, caplog):
    class Odd(StreamingDataset):
        def __getitem__(self, at):
            sample = super().__getitem__(at)
            assert sample['id'] % 2 == 0
            return sample

    loader = make(write_texts(tmp_path / 'a', 300), tmp_path / 'b', cls=Odd)
    list(checked(loader, set(range(1, 300, 2))))
    named = [record for record in caplog.records if record.getMessage().startswith('Sample')]
    summaries = [record.getMessage() for record in caplog.records if record not in named]
    assert len(named) == 20
    assert [int(text.split(': ')[1].split()[0]) for text in summaries] == [40, 80]
    assert loader.stats().bad_samples == 150
