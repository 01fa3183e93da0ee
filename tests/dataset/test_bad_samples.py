"""`on_bad_sample='skip'`: another sample in the place of each that cannot be read, marked, counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
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
from headrace.dataset.bad_sample import is_bad_sample
from headrace.errors import (
    AccessDeniedError,
    CacheError,
    ChecksumError,
    CollateError,
    ConfigError,
    DiskFullError,
    ObjectNotFoundError,
    ShardError,
    TransferError,
)
from headrace.mixing import build_loader, load_config
from headrace.storage.local import LocalStore

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


@pytest.fixture(scope='module')
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(write_texts(tmp_path_factory.mktemp('bad') / 'remote'))


class Own(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        return dict(super().__getitem__(at))


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


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('cls', [StreamingDataset, Own])
@pytest.mark.parametrize('limit', [None, 3000])
def test_bad_rows_are_marked_and_hold_others(remote, tmp_path, workers, cls, limit):
    loader = make(remote, tmp_path, workers=workers, cls=cls, cache_limit=limit)
    for _ in range(2):
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)
    stats = loader.stats()
    assert (stats.samples, stats.bad_samples) == (2 * SAMPLES, 2 * len(BAD))


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('cls', [StreamingDataset, Own])
def test_a_batch_that_is_all_bad_holds_another_sample(remote, tmp_path, cls, shuffle):
    loader = make(remote, tmp_path, cls=cls, global_batch_size=4, shuffle=shuffle)
    batches = list(checked(loader))
    assert len(batches) == 15
    assert shuffle or any(batch[BAD_SAMPLE].all() for batch in batches)


def test_ranks_and_workers_mark_the_same_samples(remote, tmp_path):
    marked = []
    for number, (ranks, workers) in enumerate([(1, 0), (2, 0), (2, 1), (4, 0), (1, 2)]):
        found: list[set[int]] = []
        for rank in range(ranks):
            topology = Topology(rank=rank, world_size=ranks)
            loader = make(remote, tmp_path / str(number), topology, workers)
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
def test_a_run_goes_on_from_every_state(remote, tmp_path, before, after):
    whole = list(world(remote, tmp_path / 'a', before, None))
    assert set().union(*(bad for _, _, bad, _ in whole)) == BAD
    for stop in range(len(whole) - 1):
        rest = list(world(remote, tmp_path / 'b', after, whole[stop][3], workers=int(stop == 1)))
        assert [batch[:3] for batch in rest] == [batch[:3] for batch in whole[stop + 1 :]]
    assert all(BAD_SAMPLE not in str(batch[3]) for batch in whole)


# -- what is bad -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('workers', [0, 2])
def test_what_a_users_code_raises_is_bad(tmp_path, workers):
    loader = make(write_texts(tmp_path / 'good'), tmp_path / 'local', workers=workers, cls=Refusing)
    assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)


def test_batches_that_are_no_dicts_are_not_changed(remote, tmp_path):
    loader = make(remote, tmp_path, cls=Tuples, workers=1)
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


def test_a_collate_function_gets_samples_of_its_own(remote, tmp_path):
    def collate(samples):
        return {'id': torch.tensor([sample.pop('id') for sample in samples]), 'text': [s['text'] for s in samples]}

    for cls in (StreamingDataset, Own):
        loader = make(remote, tmp_path / cls.__name__, cls=cls, global_batch_size=6, loader={'collate_fn': collate})
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


def test_padding_that_repeats_a_bad_sample_is_marked_twice_and_counts_once(remote, tmp_path):
    kept = []
    for rank in range(7):
        topology = Topology(rank=rank, world_size=7)
        loader = make(remote, tmp_path, topology, global_batch_size=7, remainder='exact', shuffle=False)
        count = 0
        for batch in checked(loader):
            assert list(batch) == ['id', 'text', PADDING, BAD_SAMPLE]
            kept += without_padding(batch)['id'].tolist()
            count += int((batch[BAD_SAMPLE] & ~batch[PADDING]).sum())
        assert loader.stats().bad_samples == count
    assert sorted(kept) == sorted(set(range(SAMPLES)) - BAD)


@pytest.mark.parametrize('remainder', ['repeat', 'exact'])
def test_samples_of_a_plain_dataloader_are_marked(remote, tmp_path, remainder):
    dataset = make(remote, tmp_path, global_batch_size=8, remainder=remainder).dataset
    found: set[int] = set()
    for batch in DataLoader(dataset, batch_size=8, num_workers=2):
        assert batch[BAD_SAMPLE].dtype is torch.bool
        assert (PADDING in batch) == (remainder == 'exact')
        found.update(without_padding(batch)['id'].tolist())
    assert found == set(range(SAMPLES)) - BAD
    by_itself = make(remote, tmp_path / 'again', remainder=remainder).dataset
    order = by_itself.order(0).at(np.arange(SAMPLES)).tolist()
    assert [sample[BAD_SAMPLE] for sample in by_itself] == [i in BAD for i in order]


# -- what is not -------------------------------------------------------------------------------------------------------


def test_by_default_the_error_is_raised_and_nothing_is_marked(remote, tmp_path):
    with pytest.raises((ChecksumError, ShardError, ObjectNotFoundError)):
        list(make(remote, tmp_path / 'bad', on_bad_sample='raise'))
    good = make(write_texts(tmp_path / 'good'), tmp_path / 'local', on_bad_sample='raise')
    assert all(list(batch) == ['id', 'text'] for batch in good)
    assert (good.stats().bad_samples, good.own_bad_rows.tolist()) == (0, [False] * 12)


def test_a_sample_that_is_asked_for_by_itself_raises(remote, tmp_path):
    loader = make(remote, tmp_path)
    list(loader)
    for sample_id, error in ((10, ShardError), (30, ObjectNotFoundError), (40, ChecksumError), (SINGLE, ShardError)):
        with pytest.raises(error):
            loader.dataset[sample_id]


def test_a_sample_that_is_asked_for_by_itself_is_tried_anew(tmp_path):
    remote = damage(write_texts(tmp_path / 'remote'))
    loader = make(remote, tmp_path / 'local')
    list(loader)
    write_texts(remote)
    assert loader.dataset[30]['id'] == 30


OUTAGES = [TransferError, AccessDeniedError, DiskFullError, CacheError, MemoryError]


@pytest.mark.parametrize('error', OUTAGES)
@pytest.mark.parametrize('workers', [0, 1])
def test_an_outage_raises(remote, tmp_path, monkeypatch, error, workers):
    get = LocalStore.get

    def failing(self, key, *args, **kwargs):
        if key.endswith('00002.mds'):
            raise error('out of order')
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', failing)
    monkeypatch.setattr('headrace.storage.retry.time.sleep', lambda seconds: None)
    for cls in (StreamingDataset, Own):
        loader = make(remote, tmp_path / cls.__name__, workers=workers, cls=cls, download_retry=0)
        with pytest.raises(error, match='out of order'):
            list(loader)


def test_an_error_of_a_users_that_hides_an_outage_is_one():
    def raised(cause: Exception, *, explicitly: bool) -> Exception:
        try:
            try:
                raise cause
            except Exception as error:
                raise RuntimeError('no sample') from (error if explicitly else None)
        except RuntimeError as error:
            return error

    for outage in OUTAGES:
        assert not is_bad_sample(raised(outage('down'), explicitly=True), from_user=True)
        assert is_bad_sample(raised(outage('down'), explicitly=False), from_user=True)  # it says so
    assert is_bad_sample(raised(ShardError('bad'), explicitly=True), from_user=True)
    assert not is_bad_sample(raised(ShardError('bad'), explicitly=True))
    assert not is_bad_sample(ConfigError('sample_rng'), from_user=True)


def test_where_nothing_can_be_read_the_error_is_raised(tmp_path):
    remote = write_texts(tmp_path / 'remote')
    for path in remote.glob('*.mds'):
        path.unlink()
    for cls in (StreamingDataset, Own):
        with pytest.raises(ObjectNotFoundError, match=r'shard\.0000'):
            next(iter(make(remote, tmp_path / cls.__name__, cls=cls)))
        with pytest.raises(ObjectNotFoundError, match=r'shard\.0000'):
            next(iter(make(remote, tmp_path / cls.__name__, cls=cls).dataset))


def test_other_values_and_a_column_of_that_name_are_refused(tmp_path):
    folder = write_texts(tmp_path / 'a')
    for value in ('ignore', None, True):
        with pytest.raises(ConfigError, match=rf"`on_bad_sample` must be 'raise' or 'skip', but is {value!r}"):
            StreamingDataset(local=str(folder), on_bad_sample=value)
    with MDSWriter(out=str(tmp_path / 'b'), columns={BAD_SAMPLE: 'int'}) as writer:
        writer.write({BAD_SAMPLE: 1})
    with pytest.raises(ConfigError, match=f"under '{BAD_SAMPLE}', but the data has a column of that name. Rename"):
        StreamingDataset(local=str(tmp_path / 'b'), on_bad_sample='skip')
    assert StreamingDataset(local=str(tmp_path / 'b'))[0][BAD_SAMPLE] == 1


# -- fetching, logging, configuring -----------------------------------------------------------------------------------


@pytest.fixture
def requests(monkeypatch) -> list[str]:
    """Shards that were asked of the store by this process."""
    found: list[str] = []
    get = LocalStore.get

    def counting(self, key, *args, **kwargs):
        found.append(key)
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', counting)
    return found


@pytest.mark.parametrize('cls', [StreamingDataset, Own])
@pytest.mark.parametrize('limit', [None, 3000])
def test_a_bad_shard_is_fetched_once_a_pass(remote, tmp_path, requests, cls, limit):
    loader = make(remote, tmp_path, cls=cls, global_batch_size=2, cache_limit=limit)
    for number in (1, 2):
        list(checked(loader))
        asked = {shard: requests.count(f'shard.{shard:05}.mds') for shard in (CORRUPT, ABSENT, TRUNCATED)}
        # Damaged bytes of the right size stay in the cache; the second time they are all there is to fetch anew.
        assert asked[CORRUPT] == 1 + number if limit is None else asked[CORRUPT] <= 2 * number
        assert asked[ABSENT] == number
        assert asked[TRUNCATED] == 2 * number


def test_what_is_repaired_is_read_in_the_next_pass(tmp_path):
    remote = damage(write_texts(tmp_path / 'remote'))
    for loader in ({}, {'persistent_workers': True}):
        workers = 1 if loader else 0
        damage(write_texts(remote))
        found = make(remote, tmp_path / f'local{workers}', workers=workers, loader={'fixed_epoch': 0, **loader})
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(found)) == len(BAD)
        write_texts(remote)
        # The shard with one bad sample is in the cache, and no shard by itself.
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(found, {SINGLE})) == 1


def test_a_damaged_copy_in_the_cache_is_fetched_anew(tmp_path):
    remote, local = write_texts(tmp_path / 'remote'), tmp_path / 'local'
    list(checked(make(remote, local), set()))
    shard_of(local, 2).write_bytes(b'\xff' * shard_of(local, 2).stat().st_size)
    assert len(list(checked(make(remote, local), set()))) == 5
    assert shard_of(local, 2).read_bytes() == shard_of(remote, 2).read_bytes()


def test_each_bad_shard_and_sample_is_named_once(remote, tmp_path, caplog):
    loader = make(remote, tmp_path)
    with caplog.at_level(logging.WARNING, 'headrace'):
        for _ in range(2):
            list(loader)
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 4
    assert messages[0].startswith(f'Sample {SINGLE}, row 7 of shard shard.00005.mds of stream stream_0, cannot be read')
    assert f'({remote}/shard.00005.mds): ShardError: ' in messages[0]
    for message, number, cause in zip(
        messages[1:], (1, 3, 4), ('ShardError', 'ObjectNotFoundError', 'ChecksumError'), strict=True
    ):
        assert message.startswith(f'Shard shard.0000{number}.mds of stream stream_0 cannot be read, and is skipped')
        assert f'with its 10 samples, of which {number}' in message
        assert f'({remote}/shard.0000{number}.mds): {cause}: ' in message


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


def test_a_file_says_it_too(remote, tmp_path):
    data = {'remote': str(remote), 'local': str(tmp_path), 'device_batch_size': 12, 'on_bad_sample': 'skip'}
    loader = build_loader(load_config({'train': data}).train, topology=Topology())
    assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)
    with pytest.raises(ConfigError, match="train.on_bad_sample: got 'skp'; must be one of raise, skip; did you mean"):
        load_config({'train': {**data, 'on_bad_sample': 'skp'}})
