"""Bad input gives one clear error in the main process, soon, and leaves nothing that the next start trips over."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import (
    AccessDeniedError,
    ChecksumError,
    ConfigError,
    FormatError,
    IndexFileError,
    ObjectNotFoundError,
    StreamError,
    TopologyError,
)
from headrace.testing.proxy import Fault, FaultProxy
from tests.support.programs.soon import (
    soon,  # noqa: F401
)


def read(**arguments):
    """Every id, through a loader with workers."""
    loader = StreamingDataLoader(StreamingDataset(batch_size=4, **arguments), num_workers=2)
    return sorted(sample for batch in loader for sample in batch['id'].tolist())


@pytest.mark.s3
def test_a_missing_bucket(s3_server, tmp_path):
    with pytest.raises(ObjectNotFoundError, match='No such file or directory.*no-such-bucket'):
        read(remote='s3://no-such-bucket/data', local=str(tmp_path / 'local'), validate_hash=None)
    assert not [path for path in (tmp_path / 'local').rglob('*') if path.is_file()]


@pytest.mark.s3
def test_wrong_credentials_then_right_ones(s3_server, tmp_path, make_dataset):
    url = f's3://{s3_server.new_bucket()}/data'
    with MDSWriter(out=url, columns={'id': 'int'}) as writer:
        for i in range(20):
            writer.write({'id': i})
    with FaultProxy(s3_server.endpoint_url, [Fault(status=403)]) as proxy:
        stream = Stream(remote=url, local=str(tmp_path / 'local'), endpoint_url=proxy.endpoint_url)
        with pytest.raises(AccessDeniedError, match='credentials from'):
            read(streams=[stream])
        assert len(proxy.requests) == 1, 'a refusal is not tried again'
    assert read(remote=url, local=str(tmp_path / 'local')) == list(range(20))


def test_a_truncated_shard_at_the_remote_names_stream_shard_and_url(make_dataset, tmp_path):
    remote = make_dataset('remote', 60, per_shard=10)
    shard = remote / 'shard.00002.mds'
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-40])
    local = tmp_path / 'local'
    with pytest.raises(
        ChecksumError, match=r'remote/shard\.00002\.mds is not what its index says \(fetched more than once'
    ):
        read(remote=str(remote), local=str(local))
    shard.write_bytes(whole)
    assert read(remote=str(remote), local=str(local)) == list(range(60))
    assert sorted(os.listdir(local)) == sorted([*os.listdir(remote), '.headrace-remote'])


@pytest.mark.parametrize(
    'name', ['.headrace-remote', '.headrace/ledger', '.headrace-index', '.HEADRACE-remote', 'Index.json']
)
@pytest.mark.parametrize('kind', ['raw_data', 'zip_data'])
def test_an_index_may_not_name_files_of_the_cache_itself(make_dataset, tmp_path, name, kind):
    remote = make_dataset('remote', 60, compression='zstd')
    read(remote=str(remote), local=str(tmp_path / 'local'))
    index = json.loads((remote / 'index.json').read_text())
    index['shards'][1][kind]['basename'] = name
    (remote / 'index.json').write_text(json.dumps(index))
    with pytest.raises(
        FormatError, match=rf'Shard 1 of the index .*{re.escape(repr(name))}.*Write the shard under anot'
    ):
        read(remote=str(remote), local=str(tmp_path / 'new'))
    # Nor under a cache that was made before the name was refused.
    shutil.copy(remote / 'index.json', tmp_path / 'local')
    with pytest.raises(FormatError):
        read(remote=str(remote), local=str(tmp_path / 'local'))
    assert (tmp_path / 'local/.headrace-remote').read_text() == f'{remote}\n'


def test_a_truncated_local_shard(make_dataset):
    folder = make_dataset('data', 60)
    shard = folder / 'shard.00001.mds'
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(FormatError, match=r'shard\.00001\.mds'):
        read(local=str(folder))


@pytest.mark.parametrize('name', ['../outside.mds', '/etc/passwd', 'a/../../b.mds', '..', 'a\\..\\b.mds', ''])
@pytest.mark.parametrize('where', ['local', 'remote'])
def test_an_index_whose_path_leads_out_of_the_folder(make_dataset, tmp_path, name, where):
    folder = make_dataset('data', 10)
    index = json.loads((folder / 'index.json').read_text())
    index['shards'][0]['raw_data']['basename'] = name
    (folder / 'index.json').write_text(json.dumps(index))
    arguments = {'local': str(folder)} if where == 'local' else {'remote': str(folder), 'local': str(tmp_path / 'l')}
    with pytest.raises(FormatError, match='index.json'):
        StreamingDataset(**arguments)
    assert not [path for path in (tmp_path / 'l').rglob('*') if path.is_file()]


def test_a_shard_that_is_a_link_out_of_the_cache_folder(make_dataset, tmp_path):
    folder = make_dataset('data', 10)
    secret = tmp_path / 'secret'
    (folder / 'shard.00000.mds').rename(secret)
    (folder / 'shard.00000.mds').symlink_to(secret)
    with pytest.raises(RuntimeError, match='lead out of it'):
        StreamingDataset(local=str(folder))[0]


def test_a_rank_count_that_does_not_divide_the_global_batch(make_dataset):
    from headrace.mixing import build_loader, load_config

    config = load_config({'global_batch_size': 8, 'train': {'local': str(make_dataset())}})
    with pytest.raises(TopologyError, match=r'8.*3|3.*8'):
        build_loader(config.train, topology=Topology(rank=0, world_size=3))


def test_a_misspelt_yaml_key_is_refused_before_anything_is_read(tmp_path):
    from headrace.mixing import load_config

    file = tmp_path / 'mix.yaml'
    file.write_text('global_batch_size: 8\ntrain:\n  remote: s3://nowhere/at-all\n  shufle: true\n')
    with pytest.raises(ConfigError, match=r'mix\.yaml:4.*train\.shufle.*did you mean "shuffle"'):
        load_config(file)


@pytest.mark.parametrize(
    ('content', 'error', 'message'),
    [
        (b'', IndexFileError, 'is empty or corrupted'),
        (b'{"shards": [', IndexFileError, 'is empty or corrupted'),
        (b'[]', FormatError, 'index'),
        (b'{"version": 2, "shards": []}', RuntimeError, 'Stream contains no samples'),
    ],
    ids=['empty', 'cut', 'list', 'no samples'],
)
def test_a_bad_index_at_the_remote_is_not_kept(make_dataset, tmp_path, content, error, message):
    remote = make_dataset('remote', 10)
    good = (remote / 'index.json').read_bytes()
    (remote / 'index.json').write_bytes(content)
    with pytest.raises(error, match=message):
        StreamingDataset(remote=str(remote), local=str(tmp_path / 'local'))
    (remote / 'index.json').write_bytes(good)
    assert StreamingDataset(remote=str(remote), local=str(tmp_path / 'local')).num_samples == 10


def test_no_index_anywhere(tmp_path):
    with pytest.raises(RuntimeError, match='No `remote` provided, but local file'):
        StreamingDataset(local=str(tmp_path))
    with pytest.raises(FileNotFoundError, match='No such file or directory'):
        StreamingDataset(remote=str(tmp_path / 'none'), local=str(tmp_path / 'local'))


def test_a_cache_folder_of_another_remote_is_not_mixed_with_this_one(make_dataset, tmp_path):
    """Not of one that is alive: of an earlier run. Both indexes are the same, as the sizes of tokens often are."""
    one, two = make_dataset('one', 30), make_dataset('two', 30, first=1000)
    assert (one / 'index.json').read_bytes() == (two / 'index.json').read_bytes()
    local = tmp_path / 'local'
    assert StreamingDataset(remote=str(one), local=str(local))[0]['id'] == 0
    gc.collect()
    with pytest.raises(
        StreamError, match=r'Reused local directory.* is the cache of .*one vs\. .*two\. .* delete '
    ) as caught:
        StreamingDataset(remote=str(two), local=str(local))
    note = Path(str(caught.value).rpartition('delete ')[2].rstrip('.'))
    del caught  # with which the stream lives
    gc.collect()
    assert StreamingDataset(remote=f'{one}/', local=str(local))[19]['id'] == 19
    gc.collect()
    note.unlink()
    assert StreamingDataset(remote=str(two), local=str(local))[29]['id'] == 1029  # said to be the same data


@pytest.mark.parametrize('left', [b'', b'\0\0\0', b'\n'])
def test_a_note_that_a_power_failure_emptied_says_nothing(make_dataset, tmp_path, left):
    remote, local = make_dataset('data', 20), tmp_path / 'local'
    assert StreamingDataset(remote=str(remote), local=str(local))[0]['id'] == 0
    gc.collect()
    (local / '.headrace-remote').write_bytes(left)
    (local / 'index.json').write_bytes(left)
    assert StreamingDataset(remote=str(remote), local=str(local))[19]['id'] == 19
    assert (local / '.headrace-remote').read_text() == f'{remote}\n'


def test_a_cache_folder_of_another_remote_is_one_without_its_index_too(make_dataset, tmp_path):
    one, two, local = make_dataset('one', 20), make_dataset('two', 20, first=1000), tmp_path / 'local'
    assert StreamingDataset(remote=str(one), local=str(local))[0]['id'] == 0
    gc.collect()
    (local / 'index.json').unlink()
    with pytest.raises(StreamError, match=r'is the cache of .*one vs\. .*two\.'):
        StreamingDataset(remote=str(two), local=str(local))


def test_an_emptied_cache_folder_is_nobodys(make_dataset, tmp_path):
    """As `rm -r local/*` empties it."""
    one, two, local = make_dataset('one', 20), make_dataset('two', 20, first=1000), tmp_path / 'local'
    assert StreamingDataset(remote=str(one), local=str(local))[0]['id'] == 0
    gc.collect()
    for path in local.glob('[!.]*'):
        path.unlink()
    assert os.listdir(local) == ['.headrace-remote']
    assert StreamingDataset(remote=str(two), local=str(local))[0]['id'] == 1000
    assert (local / '.headrace-remote').read_text() == f'{two}\n'
    gc.collect()
    with pytest.raises(StreamError, match=r'is the cache of .*two vs\. .*one\.'):
        StreamingDataset(remote=str(one), local=str(local))


def test_a_cache_folder_that_cannot_be_listed_is_not_taken_for_an_emptied_one(make_dataset, tmp_path, monkeypatch):
    one, two, local = make_dataset('one', 20), make_dataset('two', 20, first=1000), tmp_path / 'local'
    assert StreamingDataset(remote=str(one), local=str(local))[0]['id'] == 0
    gc.collect()

    def refuse(folder: Path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(Path, 'iterdir', refuse)
    with pytest.raises(StreamError, match=r'is the cache of .*one vs\. .*two\.'):
        StreamingDataset(remote=str(two), local=str(local))


def test_a_cache_folder_without_a_note_of_its_remote_is_used(make_dataset, tmp_path):
    """As other programs leave them."""
    remote, local = make_dataset('data', 20), tmp_path / 'local'
    shutil.copytree(remote, local)
    shutil.rmtree(remote)
    assert StreamingDataset(remote=str(remote), local=str(local))[19]['id'] == 19


def test_a_limit_below_the_largest_shard_is_refused_before_anything_is_read(tmp_path):
    with MDSWriter(out=str(tmp_path / 'remote'), columns={'id': 'int', 'x': 'bytes'}, size_limit=1000) as writer:
        for number in range(40):
            writer.write({'id': number, 'x': bytes(3000 if number == 35 else 100)})
    arguments = dict(remote=str(tmp_path / 'remote'), local=str(tmp_path / 'local'))
    with pytest.raises(ConfigError, match=r'Minimum cache usage \((\d+) bytes\) is larger than .*shard') as caught:
        StreamingDataset(**arguments, cache_limit=2800)
    minimum = int(str(caught.value).partition('(')[2].partition(' ')[0])
    del caught
    with pytest.raises(ConfigError, match='Minimum cache usage'):
        StreamingDataset(**arguments, cache_limit=minimum - 1)
    dataset = StreamingDataset(**arguments, cache_limit=minimum, batch_size=1)
    assert [dataset[number]['id'] for number in range(40)] == list(range(40))
    some = StreamingDataset(**arguments, cache_limit=minimum - 1, subset=[[0, 30]], batch_size=1)
    assert [some[number]['id'] for number in range(30)] == list(range(30))


BAD_ARGUMENTS = {
    'streams and remote': (dict(streams=[Stream(remote='y')], remote='x'), 'Give either `streams`'),
    'no streams': (dict(streams=[]), 'at least one Stream'),
    'a stream without a list': (dict(streams=Stream(remote='y')), 'list of Stream objects, but is a Stream.'),
    'a URL in the place of streams': (dict(streams='s3://y'), 'list of Stream objects, but is a str.'),
    'URLs in the place of streams': (dict(streams=['s3://y']), 'list of Stream objects, but is a list with a str.'),
    'streams by name': (dict(streams={'a': Stream(remote='y')}), 'objects, but is a dict with a str.'),
    'batch size 0': (dict(batch_size=0), '`batch_size` must be at least 1'),
    'replication 0': (dict(replication=0), '`replication` must be at least 1'),
    'predownload': (dict(predownload=-1), '`predownload` must be at least 0'),
    'algorithm': (dict(shuffle=True, shuffle_algo='py9'), 'py9'),
    'cache limit': (dict(cache_limit='lots'), 'lots'),
    'epoch size': (dict(epoch_size=-5), 'epoch_size'),
    'batching': (dict(batching_method='by_magic'), 'by_magic'),
    'seed': (dict(shuffle_seed=-1), 'seed'),
}


@pytest.mark.parametrize(('arguments', 'message'), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_arguments_are_refused_at_construction(make_dataset, arguments, message):
    with pytest.raises(ValueError, match=message):
        StreamingDataset(**({} if 'streams' in arguments else {'local': str(make_dataset())}) | arguments)


BAD_STREAMS = {
    'two weights': (dict(local='x', proportion=1, repeat=2), 'at most one of'),
    'negative': (dict(local='x', choose=-1), "at least 0; got {'choose': -1}"),
    'endless': (dict(local='x', repeat=float('inf')), 'a finite number'),
    'no number': (dict(local='x', proportion=float('nan')), 'a finite number'),
    'nowhere': (dict(), 'needs `remote`, `local` or both'),
}


@pytest.mark.parametrize(('arguments', 'message'), BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
def test_bad_streams_are_refused(arguments, message):
    with pytest.raises(StreamError, match=message):
        Stream(**arguments)


def test_a_pickled_column_needs_permission(tmp_path):
    with MDSWriter(out=str(tmp_path / 'p'), columns={'x': 'pkl'}) as writer:
        writer.write({'x': {1, 2}})
    with pytest.raises(ValueError, match='contains an unsafe type'):
        StreamingDataset(local=str(tmp_path / 'p'))
    assert StreamingDataset(local=str(tmp_path / 'p'), allow_unsafe_types=True)[0]['x'] == {1, 2}


def test_ids_out_of_range(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset('data', 10)))
    for at in (10, -11):
        with pytest.raises(IndexError, match='at least -10 and below 10'):
            dataset[at]
