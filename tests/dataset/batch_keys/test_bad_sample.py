"""Which errors `on_bad_sample='skip'` takes for bad samples; how often bad shards are fetched, and what is logged."""

from __future__ import annotations

import pytest

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
from tests.support.datasets.bad_data import (
    BAD,
    SINGLE,
    Own,
    checked,
    damage,
    make,
    write_texts,
)


def test_by_default_the_error_is_raised_and_nothing_is_marked(damaged_remote, tmp_path):
    with pytest.raises((ChecksumError, ShardError, ObjectNotFoundError)):
        list(make(damaged_remote, tmp_path / 'bad', on_bad_sample='raise'))
    good = make(write_texts(tmp_path / 'good'), tmp_path / 'local', on_bad_sample='raise')
    assert all(list(batch) == ['id', 'text'] for batch in good)
    assert (good.stats().bad_samples, good.own_bad_rows.tolist()) == (0, [False] * 12)


def test_a_sample_that_is_asked_for_by_itself_raises(damaged_remote, tmp_path):
    loader = make(damaged_remote, tmp_path)
    list(loader)
    for sample_id, error in ((10, ShardError), (30, ObjectNotFoundError), (40, ChecksumError), (SINGLE, ShardError)):
        with pytest.raises(error):
            loader.dataset[sample_id]


def test_a_sample_that_is_asked_for_by_itself_is_tried_anew(tmp_path):
    damaged_remote = damage(write_texts(tmp_path / 'remote'))
    loader = make(damaged_remote, tmp_path / 'local')
    list(loader)
    write_texts(damaged_remote)
    assert loader.dataset[30]['id'] == 30


OUTAGES = [TransferError, AccessDeniedError, DiskFullError, CacheError, MemoryError]


@pytest.mark.parametrize('error', [*OUTAGES, RuntimeError, OSError])  # the last as a store's client may raise them
@pytest.mark.parametrize('workers', [0, 1])
def test_an_outage_raises(damaged_remote, tmp_path, monkeypatch, error, workers):
    get = LocalStore.get

    def failing(self, key, *args, **kwargs):
        if key.endswith('00002.mds'):
            raise error('out of order')
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', failing)
    monkeypatch.setattr('headrace.storage.transfer.retry.time.sleep', lambda seconds: None)
    for cls in (StreamingDataset, Own):
        loader = make(damaged_remote, tmp_path / cls.__name__, workers=workers, cls=cls, download_retry=0)
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
    damaged_remote = write_texts(tmp_path / 'remote')
    for path in damaged_remote.glob('*.mds'):
        path.unlink()
    for cls in (StreamingDataset, Own):
        with pytest.raises(ObjectNotFoundError, match=r'shard\.0000'):
            next(iter(make(damaged_remote, tmp_path / cls.__name__, cls=cls)))
        with pytest.raises(ObjectNotFoundError, match=r'shard\.0000'):
            next(iter(make(damaged_remote, tmp_path / cls.__name__, cls=cls).dataset))


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


def test_a_file_says_it_too(damaged_remote, tmp_path):
    data = {'remote': str(damaged_remote), 'local': str(tmp_path), 'device_batch_size': 12, 'on_bad_sample': 'skip'}
    loader = build_loader(load_config({'train': data}).train, topology=Topology())
    assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)
    with pytest.raises(ConfigError, match="train.on_bad_sample: got 'skp'; must be one of raise, skip; did you mean"):
        load_config({'train': {**data, 'on_bad_sample': 'skp'}})
