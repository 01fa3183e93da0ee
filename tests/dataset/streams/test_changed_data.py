"""Data that were written anew at the same place, while an older version of them is cached."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import logging
import multiprocessing
import os
import shutil
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import AccessDeniedError, CacheError, ResumeError, StreamError
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.waiting import until

processes = multiprocessing.get_context('fork')


def write(remote, first, n=40, **options):
    """Samples `first` and following, of 10 in a shard. Without hashes, equal numbers of samples give equal indexes."""
    with MDSWriter(out=str(remote), columns={'id': 'int'}, size_limit=280, exist_ok=True, **options) as writer:
        for i in range(n):
            writer.write({'id': first + i})


def ids(dataset):
    return [sample['id'] for sample in dataset[:]]


class Counting(LocalStore):
    """A folder that notes each request in a file, and may not answer."""

    def __init__(self, root, log):
        super().__init__(root)
        self.log = log

    @property
    def url(self):
        return f'counting://{self.root}'

    def note(self, what):
        with open(self.log, 'a') as file:
            file.write(f'{what}\n')

    def get(self, key, out, **options):
        self.note(f'get {key}')
        return super().get(key, out, **options)

    def head(self, key):
        self.note(f'head {key}')
        return super().head(key)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / 'requests'
    register_store('counting', lambda url, _: Counting(Path(url.removeprefix('counting://')), path))
    return path


def requests(log):
    """Those since the last call."""
    found = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return found


@pytest.mark.parametrize('n', [40, 60, 20])
@pytest.mark.parametrize('hashes', [[], ['sha1']])
@pytest.mark.parametrize('read_first', ['nothing', 'some', 'all'])
def test_old_and_new_samples_are_never_mixed(tmp_path, n, hashes, read_first, caplog):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0, hashes=hashes)
    before = StreamingDataset(remote=str(remote), local=str(local))
    for i in {'nothing': [], 'some': [0, 15], 'all': range(40)}[read_first]:
        assert before[i]['id'] == i
    write(remote, 1000, n, hashes=hashes)
    with caplog.at_level(logging.WARNING, 'headrace'):
        assert ids(StreamingDataset(remote=str(remote), local=str(local))) == list(range(1000, 1000 + n))
    assert f'The data at {remote} have changed' in caplog.text
    shards = json.loads((remote / 'index.json').read_text())['shards']
    assert sorted(path.name for path in local.glob('shard*')) == [shard['raw_data']['basename'] for shard in shards]


def test_shards_that_are_provably_the_same_stay(tmp_path, log):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0, 40, hashes=['sha1'], compression='zstd')
    where = {'remote': f'counting://{remote}', 'local': str(local)}
    assert ids(StreamingDataset(**where)) == list(range(40))
    requests(log)
    old = json.loads((remote / 'index.json').read_text())['shards']
    write(remote, 0, 60, hashes=['sha1'], compression='zstd')
    assert ids(StreamingDataset(**where)) == list(range(60))
    new = json.loads((remote / 'index.json').read_text())['shards']
    other = {f'get {shard["zip_data"]["basename"]}': 1 for shard in new if shard not in old}
    assert 0 < len(other) < len(new)
    assert Counter(requests(log)) == {'head index.json': 1, 'get index.json': 1, **other}


def test_data_that_have_not_changed_cost_one_request_and_nothing_else(tmp_path, log):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0)
    where = {'remote': f'counting://{remote}', 'local': str(local)}
    ids(StreamingDataset(**where))
    times = {path: path.stat().st_mtime_ns for path in local.iterdir()}
    requests(log)
    for _ in range(3):
        assert ids(StreamingDataset(**where)) == list(range(40))
        assert requests(log) == ['head index.json']
    assert {path: path.stat().st_mtime_ns for path in local.iterdir()} == times


def test_workers_do_not_ask(tmp_path, log):
    remote = tmp_path / 'remote'
    write(remote, 0)
    dataset = StreamingDataset(remote=f'counting://{remote}', local=str(tmp_path / 'local'), batch_size=4)
    ids(dataset)
    requests(log)
    assert len(list(StreamingDataLoader(dataset, batch_size=4, num_workers=2))) == 10
    assert requests(log) == []


def test_a_folder_of_ones_own_is_asked_nothing(tmp_path):
    write(tmp_path / 'data', 0)
    before = sorted(os.listdir(tmp_path / 'data'))
    assert ids(StreamingDataset(local=str(tmp_path / 'data'))) == list(range(40))
    assert ids(StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'data'))) == list(range(40))
    assert sorted(os.listdir(tmp_path / 'data')) == before


def open_as_rank(rank, ranks, remote, local, turn, next_turn):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    turn.wait()
    assert StreamingDataset(remote=remote, local=local)[39]['id'] == 1039
    next_turn.set()


@pytest.mark.parametrize('order', ['together', 'one after the other'])
def test_one_rank_of_a_node_asks(tmp_path, log, order):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0)
    ids(StreamingDataset(remote=f'counting://{remote}', local=str(local)))
    write(remote, 1000)
    requests(log)
    turns = [processes.Event() for _ in range(5)]
    ranks = [
        processes.Process(target=open_as_rank, args=(i, 4, f'counting://{remote}', str(local), *turns[i : i + 2]))
        for i in range(4)
    ]
    for rank in ranks:
        rank.start()
    for turn in turns if order == 'together' else turns[:1]:
        turn.set()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * 4
    assert [each for each in sorted(requests(log)) if 'index' in each] == ['get index.json', 'head index.json']


def test_refuse(tmp_path):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0)
    where = {'remote': str(remote), 'local': str(local)}
    ids(StreamingDataset(**where))
    write(remote, 1000)
    before = {path.name: path.read_bytes() for path in local.iterdir()}
    for _ in range(2):
        with pytest.raises(StreamError, match=r"have changed since they were cached in .* is 'refuse'"):
            StreamingDataset(**where, on_changed_data='refuse')
        with pytest.raises(StreamError, match='have changed'):
            StreamingDataset(streams=[Stream(**where, on_changed_data='refuse')])
    assert {path.name: path.read_bytes() for path in local.iterdir()} == before
    assert ids(StreamingDataset(**where)) == list(range(1000, 1040))


@pytest.mark.parametrize('n', [40, 60])
@pytest.mark.parametrize('on_changed_data', ['refresh', 'refuse'])
def test_a_dataset_that_was_not_fetched_keeps_its_files(tmp_path, n, on_changed_data):
    """As after a writer wrote a newer version to `local`, which nobody has uploaded yet."""
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0, hashes=['sha1'])
    write(local, 1000, n, hashes=['sha1'])
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in local.iterdir()}
    for _ in range(2):
        with pytest.raises(StreamError, match='headrace did not fetch it'):
            StreamingDataset(remote=str(remote), local=str(local), on_changed_data=on_changed_data)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in local.iterdir()} == before
    assert ids(StreamingDataset(local=str(local))) == list(range(1000, 1000 + n))


def test_a_cache_of_another_program_is_read(tmp_path):
    """Its index is the remote's, and no note says where it is from."""
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0, hashes=['sha1'])
    shutil.copytree(remote, local)
    (local / 'shard.00001.mds').unlink()
    for _ in range(2):
        assert ids(StreamingDataset(remote=str(remote), local=str(local))) == list(range(40))


def without_version(local):
    """Have a cache be as one of 0.1.0, or on a file system without extended attributes."""
    with contextlib.suppress(OSError):
        os.removexattr(local / 'index.json', 'user.headrace.version')


def test_a_cache_without_a_version_is_refreshed(tmp_path):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0)
    ids(StreamingDataset(remote=str(remote), local=str(local)))
    without_version(local)
    write(remote, 1000, 60)
    assert ids(StreamingDataset(remote=str(remote), local=str(local))) == list(range(1000, 1060))


class Failing(LocalStore):
    """A folder that answers, and then does not give its index."""

    error: Exception | None = None

    @property
    def url(self):
        return f'failing://{self.root}'

    def get(self, key, out, **options):
        if key == 'index.json' and Failing.error is not None:
            raise Failing.error
        return super().get(key, out, **options)


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """A remote whose data are cached; the function has it fail."""
    register_store('failing', lambda url, _: Failing(Path(url.removeprefix('failing://'))))
    write(tmp_path / 'remote', 0)
    where = {'remote': f'failing://{tmp_path / "remote"}', 'local': str(tmp_path / 'local')}
    assert ids(StreamingDataset(**where)) == list(range(40))
    return where, lambda error: monkeypatch.setattr(Failing, 'error', error)


@pytest.mark.parametrize(
    'error', [AccessDeniedError('denied'), CacheError('unusable'), OSError(errno.ENOSPC, 'No space left on device')]
)
def test_a_comparison_that_fails_is_a_warning(tmp_path, failing, error, caplog):
    where, fail = failing
    without_version(tmp_path / 'local')
    fail(error)
    with caplog.at_level(logging.WARNING, 'headrace'):
        assert ids(StreamingDataset(**where)) == list(range(40))
    assert [record.message[:24] for record in caplog.records] == ['Could not ask 1 remote w']


def test_data_that_are_known_to_have_changed_and_cannot_be_fetched_are_an_error(tmp_path, failing):
    where, fail = failing
    write(tmp_path / 'remote', 1000)
    fail(AccessDeniedError('denied'))
    with pytest.raises(AccessDeniedError):
        StreamingDataset(**where)
    fail(None)
    assert ids(StreamingDataset(**where)) == list(range(1000, 1040))


class Waiting(LocalStore):
    """A folder that gives its index when it is told to."""

    asked = threading.Event()
    may_answer = threading.Event()

    def get(self, key, out, **options):
        if key == 'index.json':
            Waiting.asked.set()
            assert Waiting.may_answer.wait(60)
        return super().get(key, out, **options)


def test_a_job_that_starts_does_not_stall_a_running_one(tmp_path):
    """While the index is downloaded, the running job fetches shards."""
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    register_store('waiting', lambda url, _: Waiting(Path(url.removeprefix('waiting://'))))
    where = {'remote': f'waiting://{remote}', 'local': str(local)}
    write(remote, 0)
    Waiting.may_answer.set()
    running = StreamingDataset(**where)
    without_version(local)
    Waiting.asked.clear()
    Waiting.may_answer.clear()
    with ThreadPoolExecutor(2) as pool:
        try:
            starting = pool.submit(StreamingDataset, **where)
            assert Waiting.asked.wait(60)
            assert pool.submit(lambda: running[15]['id']).result(timeout=60) == 15
            assert not starting.done()
        finally:
            Waiting.may_answer.set()
        assert ids(starting.result()) == list(range(40))


def test_a_resume_onto_changed_data_is_refused(tmp_path):
    remote = tmp_path / 'remote'
    write(remote, 0, hashes=['sha1'])
    where = {'remote': str(remote), 'local': str(tmp_path / 'local'), 'batch_size': 4}
    state = StreamingDataset(**where).state_dict(8, from_beginning=False)
    write(remote, 1000, hashes=['sha1'])
    dataset = StreamingDataset(**where)
    with pytest.raises(ResumeError):
        dataset.load_state_dict(state)
        next(iter(dataset))


@pytest.mark.parametrize('hashes', [[], ['sha1']])
def test_a_running_reader_of_the_old_data_stops_with_an_error(tmp_path, hashes):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0, hashes=hashes)
    running = StreamingDataset(remote=str(remote), local=str(local))
    assert running[0]['id'] == 0
    write(remote, 1000, 60, hashes=hashes)
    assert ids(StreamingDataset(remote=str(remote), local=str(local))) == list(range(1000, 1060))
    assert running[5]['id'] == 5  # of a shard that it has mapped
    for i in (15, 25):
        with pytest.raises(CacheError, match='is no longer the index that this process has read'):
            running[i]
    assert ids(StreamingDataset(remote=str(remote), local=str(local))) == list(range(1000, 1060))


def test_openings_of_old_shards_share_one_look_at_the_index(tmp_path, monkeypatch):
    """The inode number of index.json differs at each look, as on some FUSE file systems: it is not read again."""
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0, 400)
    where = {'remote': str(remote), 'local': str(local)}
    ids(StreamingDataset(**where))
    for path in local.glob('shard*'):
        os.utime(path, (1e9, 1e9))
    dataset = StreamingDataset(**where)
    assert dataset[0]['id'] == 0
    index, now, looks, stat = local / 'index.json', time.time() + 10, [], os.stat
    before = index.stat()
    index.write_bytes(bytes(before.st_size))  # whoever reads it again takes it for another
    os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))

    def look(path, *args, **options):
        info = stat(path, *args, **options)
        if str(path) != str(index):
            return info
        looks.append(path)
        return os.stat_result((info[0], len(looks), *info[2:10]), {'st_mtime_ns': info.st_mtime_ns})

    monkeypatch.setattr(os, 'stat', look)
    monkeypatch.setattr(time, 'time', lambda: now)
    for i in range(10, 390, 10):
        assert dataset[i]['id'] == i
    assert len(looks) == 1
    now += 1.5
    assert dataset[395]['id'] == 395
    assert len(looks) == 2


class Late(LocalStore):
    """A folder whose shards are read at once, and arrive when something has happened."""

    happens = staticmethod(lambda: None)

    def get(self, key, out, **options):
        data = io.BytesIO()
        etag = super().get(key, data, **options)
        if key.startswith('shard'):
            Late.happens()
        out.write(data.getvalue())
        return etag


def test_a_shard_of_the_old_data_that_arrives_late_is_not_kept(tmp_path, monkeypatch):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    register_store('late', lambda url, _: Late(Path(url.removeprefix('late://'))))
    write(remote, 0)
    running = StreamingDataset(remote=f'late://{remote}', local=str(local))

    def change():
        monkeypatch.undo()
        write(remote, 1000, 60)
        assert len(StreamingDataset(remote=f'late://{remote}', local=str(local))) == 60

    monkeypatch.setattr(Late, 'happens', staticmethod(change))
    with pytest.raises(CacheError, match='no longer the index'):
        running[0]
    del running
    gc.collect()
    assert ids(StreamingDataset(remote=f'late://{remote}', local=str(local))) == list(range(1000, 1060))


def test_a_cache_folder_that_is_emptied_and_filled_again_is_read_on(tmp_path):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0)
    running = StreamingDataset(remote=str(remote), local=str(local))
    assert running[0]['id'] == 0
    shutil.rmtree(local)
    assert running[15]['id'] == 15
    StreamingDataset(remote=str(remote), local=str(local))
    assert running[25]['id'] == 25


def test_a_remote_that_is_gone_or_does_not_answer_is_a_warning(tmp_path, caplog):
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    write(remote, 0)
    where = {'remote': str(remote), 'local': str(local)}
    ids(StreamingDataset(**where))
    remote.rename(tmp_path / 'away')
    with caplog.at_level(logging.WARNING, 'headrace'):
        assert ids(StreamingDataset(**where)) == list(range(40))
    assert 'Could not ask 1 remote whether the data have changed' in caplog.text


def test_s3(s3_server, tmp_path, caplog, monkeypatch):
    """Equal indexes have equal ETags there; the time of their writing, in seconds, tells them apart."""
    monkeypatch.setattr('headrace.storage.cache.index_fetch.ANSWER_TIMEOUT', 60.0)  # on a busy machine
    remote, local = f's3://{s3_server.new_bucket()}/data', str(tmp_path / 'local')
    write(remote, 0)
    assert ids(StreamingDataset(remote=remote, local=local)) == list(range(40))
    end = int(time.time()) + 1
    until(lambda: time.time() >= end)
    write(remote, 1000)
    assert ids(StreamingDataset(remote=remote, local=local)) == list(range(1000, 1040))
    assert 'have changed' in caplog.text


def test_100_cached_streams_of_a_server_that_is_silent_wait_for_it_once(tmp_path, s3_server, caplog):
    """Of a server that takes connections, and says nothing."""
    bucket = s3_server.new_bucket()
    streams = {'remote': f's3://{bucket}/data', 'local': str(tmp_path / 'local')}
    write(streams['remote'], 0)
    ids(StreamingDataset(**streams))
    folders = [tmp_path / f'local-{i}' for i in range(100)]
    for folder in folders:
        shutil.copytree(tmp_path / 'local', folder)
        (folder / '.headrace-remote').write_text(f's3://{bucket}/data\n')
    with socket.create_server(('127.0.0.1', 0)) as silent:
        endpoint = f'http://127.0.0.1:{silent.getsockname()[1]}'
        with caplog.at_level(logging.WARNING, 'headrace'):
            dataset = StreamingDataset(
                streams=[Stream(remote=streams['remote'], local=str(f), endpoint_url=endpoint) for f in folders]
            )
        silent.setblocking(False)
        asked = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
    assert 1 <= asked <= 32
    assert len(dataset) == 4000
    assert np.unique([dataset[i]['id'] for i in range(0, 4000, 7)]).size > 30
    assert [record.message[:29] for record in caplog.records] == ['Could not ask 100 remotes whe']
