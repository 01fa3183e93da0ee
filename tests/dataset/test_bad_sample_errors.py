"""Which errors `on_bad_sample='skip'` takes for bad samples; how often bad shards are fetched, and what is logged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from bad_data import (
    ABSENT,
    BAD,
    CORRUPT,
    SINGLE,
    TRUNCATED,
    Own,
    checked,
    damage,
    make,
    shard_of,
    write_texts,
)

from headrace import (
    BAD_SAMPLE,
    MDSWriter,
    StreamingDataset,
    Topology,
)
from headrace.dataset.batch_keys.bad_sample import is_bad_sample
from headrace.errors import (
    AccessDeniedError,
    CacheError,
    ChecksumError,
    ConfigError,
    DiskFullError,
    ObjectNotFoundError,
    ShardError,
    StorageError,
    TransferError,
)
from headrace.mixing import build_loader, load_config
from headrace.storage.stores.local import LocalStore


@pytest.fixture(scope='module')
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(write_texts(tmp_path_factory.mktemp('bad') / 'remote'))


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


@pytest.mark.parametrize('error', [*OUTAGES, RuntimeError, OSError])  # the last as a store's client may raise them
@pytest.mark.parametrize('workers', [0, 1])
def test_an_outage_raises(remote, tmp_path, monkeypatch, error, workers):
    get = LocalStore.get

    def failing(self, key, *args, **kwargs):
        if key.endswith('00002.mds'):
            raise error('out of order')
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', failing)
    monkeypatch.setattr('headrace.storage.transfer.retry.time.sleep', lambda seconds: None)
    for cls in (StreamingDataset, Own):
        loader = make(remote, tmp_path / cls.__name__, workers=workers, cls=cls, download_retry=0)
        with pytest.raises(StorageError if error is RuntimeError else error, match='out of order'):
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
        # Within a limit they may be evicted at any moment before they are read, and be fetched once more.
        if limit is None:
            assert asked[CORRUPT] == 1 + number
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
