"""The opening of streams: options of their stores, and folders that two of them cannot share."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from headrace import MDSWriter, Stream, StreamingDataset
from headrace.errors import (
    ConfigError,
    HeadraceError,
    StreamError,
)
from headrace.storage import StoreOptions, register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.soon import (
    soon,  # noqa: F401
)

MISTAKES: dict[str, dict[str, Any]] = {
    'a split that is not there': {'split': 'trian'},
    'a column that is not there': {'columns': ['text']},
    'a selection of nothing': {'subset': [[100, 200]]},
    'a limit that holds no shard': {'cache_limit': 700},
    'an order that is not there': {'subset': [[0, 5]], 'shuffle': True, 'shuffle_algo': 'py9', 'batch_size': 1},
    'a weight that does not fit the size of an epoch': {'subset': [[0, 5]], 'epoch_size': 10},
}


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_corrected_with_the_same_streams(make_dataset: Any, tmp_path: Path, name: str) -> None:
    stream = Stream(remote=str(make_dataset(samples=30)), local=str(tmp_path / 'cache'), repeat=1)
    before = vars(stream).copy()
    with pytest.raises(HeadraceError):
        list(StreamingDataset(streams=[stream], **MISTAKES[name]))
    assert vars(stream) == before

    dataset = StreamingDataset(streams=[stream], cache_limit=4000, batch_size=1)
    assert [sample['id'] for sample in dataset] == list(range(30))


def test_a_stream_of_another_dataset_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    stream = Stream(remote=str(make_dataset(samples=30)), local=str(tmp_path / 'cache'))
    dataset = StreamingDataset(streams=[stream], batch_size=1)
    with pytest.raises(StreamError, match=r'stream_0 .* is one of another dataset already. Make a new Stream'):
        StreamingDataset(streams=[stream], cache_limit=4000)
    assert [sample['id'] for sample in dataset] == list(range(30))


@pytest.fixture
def opened(own_stores):
    """The options of each store that was opened, by its URL; ``probe:///folder`` is the folder."""
    found = {}

    def open_probe(url, options):
        found[url] = options
        return LocalStore(url.removeprefix('probe://'))

    register_store('probe', open_probe)
    return found


def test_all_options_reach_the_store(opened, tmp_path):
    stream = Stream(
        remote='probe:///x',
        local=str(tmp_path),
        endpoint_url='http://a',
        region='r',
        anonymous=True,
        requester_pays=True,
        download_timeout=7,
        store_options={'connect_timeout': 3, 'profile': 'p'},
    )
    stream.open_store()
    assert opened == {
        'probe:///x': StoreOptions(
            endpoint_url='http://a',
            region='r',
            anonymous=True,
            requester_pays=True,
            connect_timeout=3.0,
            read_timeout=7.0,
            extra={'profile': 'p'},
        )
    }


def test_without_options_there_are_the_defaults(opened, tmp_path):
    Stream(remote='probe:///x', local=str(tmp_path)).open_store()
    assert opened['probe:///x'] == StoreOptions()


def test_a_dataset_s_options_are_those_of_streams_without_own(opened, make_dataset, tmp_path):
    own, plain = (f'probe://{make_dataset(name)}' for name in ('own', 'plain'))
    streams = [
        Stream(remote=own, local=str(tmp_path / 'a'), store_options={'connect_timeout': 3}),
        Stream(remote=plain, local=str(tmp_path / 'b')),
    ]
    StreamingDataset(streams=streams, store_options={'profile': 'p'})
    assert (opened[own].connect_timeout, opened[own].extra) == (3.0, {})
    assert (opened[plain].connect_timeout, opened[plain].extra) == (10.0, {'profile': 'p'})


def test_a_dataset_says_where_the_store_is(opened, make_dataset, tmp_path):
    remote = f'probe://{make_dataset()}'
    place = dict(endpoint_url='http://a', region='r', anonymous=True, requester_pays=True)
    StreamingDataset(remote=remote, local=str(tmp_path / 'cache'), **place)
    assert {name: getattr(opened[remote], name) for name in place} == place


def test_the_store_refuses_options_that_it_does_not_have(tmp_path):
    stream = Stream(remote='s3://b/x', local=str(tmp_path), store_options={'profil': 'p', 'connect_timeout': 3})
    with pytest.raises(ConfigError, match=r"S3 store are .*'profile'\] .*connect_timeout.*; got \['profil'\]"):
        stream.open_store()


@pytest.mark.parametrize('seconds', [0, -1, '3', None, True, float('nan')])
def test_a_time_out_is_a_number(tmp_path, seconds):
    stream = Stream(remote='s3://b/x', local=str(tmp_path), store_options={'connect_timeout': seconds})
    with pytest.raises(StreamError, match='connect_timeout.*above 0, but is'):
        stream.open_store()


@pytest.mark.parametrize(
    ('remote', 'is_local'),
    [
        ('{0}', True),
        ('{0}/', True),
        ('file://{0}', True),
        ('file://localhost{0}', True),
        ('{0}/../elsewhere', False),
        ('s3://{0}', False),
        ('dbfs:/{0}', False),
    ],
)
def test_a_remote_is_local_if_it_is_the_folder_itself(tmp_path, remote, is_local):
    assert Stream(remote=remote.format(tmp_path), local=str(tmp_path)).is_local == is_local


def test_a_url_with_one_slash_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not Stream(remote='dbfs:/x', local='dbfs:/x').is_local


def test_a_file_url_may_quote(tmp_path):
    assert Stream(remote=f'file://{tmp_path}/a%20b', local=str(tmp_path / 'a b')).is_local


def test_one_cache_folder_for_two_remotes(make_dataset, tmp_path):
    one, two = make_dataset('one', 10), make_dataset('two', 10)
    first = StreamingDataset(remote=str(one), local=str(tmp_path / 'local'))
    with pytest.raises(StreamError, match=r'Reused local directory.*vs\..*Provide a different one'):
        StreamingDataset(remote=str(two), local=str(tmp_path / 'local'))
    del first


def test_a_remote_may_be_spelled_in_several_ways(make_dataset, tmp_path, monkeypatch):
    remote = make_dataset('one', 10)
    monkeypatch.chdir(remote.parent)
    spelled = [str(remote), remote.name, f'{remote}/', remote.as_uri()]
    datasets = [StreamingDataset(remote=text, local=str(tmp_path / 'local')) for text in spelled]
    assert [dataset[9]['id'] for dataset in datasets] == [9] * 4


def test_a_remote_that_was_mistyped_is_corrected_in_the_same_process(make_dataset, tmp_path):
    """As in a notebook, which keeps the error, and with it the stream that was not opened."""
    remote, local = make_dataset('data', 10), tmp_path / 'local'
    with pytest.raises(FileNotFoundError) as kept:
        StreamingDataset(remote=f'{remote}s', local=str(local))
    assert StreamingDataset(remote=str(remote), local=str(local))[9]['id'] == 9
    assert kept.value is not None


def test_two_datasets_share_a_local_folder(make_dataset):
    folder = make_dataset('data', 10)
    one, two = StreamingDataset(local=str(folder)), StreamingDataset(local=str(folder))
    assert one[3]['id'] == two[3]['id']


def test_a_stream_that_is_listed_twice_is_refused(make_dataset: Any) -> None:
    stream = Stream(local=str(make_dataset(samples=8)))
    with pytest.raises(StreamError, match='listed twice'):
        StreamingDataset(streams=[stream, stream])


def test_datasets_of_one_folder_end_with_the_program_quietly(make_dataset: Any) -> None:
    code = (
        'import sys; from headrace import StreamingDataset; a, b = (StreamingDataset(local=sys.argv[1]) for _ in "ab")'
    )
    ended = subprocess.run(
        [sys.executable, '-c', code, str(make_dataset(samples=8))], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ''


@pytest.mark.parametrize('hashes', [['xxh64'], []])
def test_peers_of_data_without_hashes_are_warned_of(tmp_path: Path, hashes: list[str]) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'id': 'int'}, hashes=hashes) as writer:
        writer.write({'id': 1})
    peers = {'hosts': ['127.0.0.1']}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'cache'), batch_size=1, peers=peers)
    told = [str(one.message) for one in caught if 'has no hashes, so wrong bytes of a peer' in str(one.message)]
    assert len(told) == (not hashes)
    assert all(f'headrace reshard {tmp_path}/data OUT --hashes xxh64' in text for text in told)
