"""Streams of Parquet files, read without conversion: order, resume, selections, limits and caches as of shards."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.dataset.streams.source_data import SourceData
from headrace.errors import (
    ConfigError,
    EmptyDatasetError,
    FormatError,
    ObjectNotFoundError,
    ResumeError,
    StorageError,
    StreamError,
)
from headrace.order import Topology
from headrace.sources.source_index import SourceIndex
from headrace.sources.source_store import SourceStore
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from headrace.testing.oracle import World, check_resume
from headrace.testing.stores import put_bytes
from tests.support.programs.waiting import until
from tests.support.servers.s3 import S3Server

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')
processes = multiprocessing.get_context('fork')


def write(folder: Path, *names: str, rows: int = 20, first: int = 0, group: int = 5, text: int = 20) -> Path:
    """Parquet files with ids that continue from file to file."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        ids = range(first + number * rows, first + (number + 1) * rows)
        table = pa.table({'id': pa.array(ids, pa.int64()), 'text': [f'{i}'.rjust(text) for i in ids]})
        pq.write_table(table, folder / name, row_group_size=group)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """60 samples in 12 row groups of three files."""
    return write(tmp_path / 'data', *(f'data/train-0000{n}-of-00003.parquet' for n in range(3)))


def ids(dataset: StreamingDataset) -> list[int]:
    return [int(sample['id']) for sample in dataset[:]]


def shards(folder: Path) -> dict[str, int]:
    """The shards of a cache folder, with the times of their files."""
    found = sorted(folder.rglob('*.mds'))
    return {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in found}


def test_samples_are_those_of_the_files_in_order(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'))
    assert dataset[:] == [{'id': i, 'text': f'{i}'.rjust(20)} for i in range(60)]
    assert len(shards(tmp_path / 'cache')) == 12
    copy = pickle.loads(pickle.dumps(dataset))
    assert ids(copy) == list(range(60))


def test_a_mixture_with_shards_resumes_exactly_on_other_ranks(
    data: Path, tmp_path: Path, make_dataset: Callable[..., Path]
) -> None:
    others = make_dataset('shards', 30, per_shard=10, first=1000)

    def loader(topology: Topology, workers: int) -> StreamingDataLoader:
        streams = [
            Stream(remote=str(data), local=str(tmp_path / 'cache'), name='parquet', proportion=2),
            Stream(local=str(others), name='mds', proportion=1),
        ]
        dataset = StreamingDataset(
            streams=streams, columns=['id'], batch_size=12 // topology.world_size, shuffle=True, topology=topology
        )
        return StreamingDataLoader(dataset, batch_size=12 // topology.world_size, num_workers=workers)

    worlds = [World(), World(ranks=2, nodes=2), World(ranks=3)]
    assert check_resume(loader, worlds, epochs=2, every=3, horizon=3) > 3


def test_columns_and_tests_of_others_read_only_these(data: Path, tmp_path: Path) -> None:
    def read(**options: Any) -> StreamingDataset:
        dataset = StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'), **options)
        dataset[:]
        return dataset

    assert read(columns=['text'], where={'id': {'below': 7}})[:] == [{'text': f'{i}'.rjust(20)} for i in range(7)]
    assert len(read(subset=[[10, 20]], columns=['id'])) == 10
    # The columns of a test are stored with the others: three kinds of shards share the folder.
    read()
    assert (
        len({name.rpartition('-')[2] for name in shards(tmp_path / 'cache') if '-' in name.partition('parquet')[2]})
        == 2
    )
    with pytest.raises(StreamError, match="asks for 'txt'.*Did you mean 'text'"):
        read(columns=['txt'])


def test_local_data_get_a_temporary_cache(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
    (tmp_path / 'temporary').mkdir()
    caplog.set_level(logging.INFO)
    before = sorted(data.rglob('*'))
    dataset = StreamingDataset(local=str(data), split='train')
    assert ids(dataset) == list(range(60))
    assert sorted(data.rglob('*')) == before
    assert len(shards(tmp_path / 'temporary')) == 12
    assert 'is read as parquet, without conversion' in caplog.text
    assert ids(StreamingDataset(local=f'{data}/data/train-0000[02]-*')) == [*range(20), *range(40, 60)]


def test_a_format_is_found_or_said(data: Path, tmp_path: Path, make_dataset: Callable[..., Path]) -> None:
    def read(**options: Any) -> list[int]:
        return ids(StreamingDataset(local=str(tmp_path / f'cache{len(list(tmp_path.iterdir()))}'), **options))

    assert read(remote=str(data), format='parquet') == list(range(60))
    assert read(remote=str(make_dataset('shards', 20)), format='mds') == list(range(20))
    with pytest.raises(ObjectNotFoundError, match=r'index\.json'):
        read(remote=str(data), format='mds')
    with pytest.raises(EmptyDatasetError, match="of the format 'arrow'"):
        read(remote=str(data), format='arrow')
    with pytest.raises(StreamError, match=r"`format` of a stream is one of mds, .*parquet.*'parkett'"):
        read(remote=str(data), format='parkett')
    with pytest.raises(EmptyDatasetError, match="split 'validation'.*train-00000"):
        read(remote=str(data), split='validation')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ObjectNotFoundError, match=r'index\.json'):
        read(remote=str(tmp_path / 'empty'))


def test_new_data_replace_the_cached_ones_but_for_files_that_stay(data: Path, tmp_path: Path) -> None:
    remote, cache = {'remote': str(data)}, tmp_path / 'cache'
    dataset = StreamingDataset(**remote, local=str(cache), batch_size=5)
    loader = StreamingDataLoader(dataset, batch_size=5)
    next(iter(loader))
    state = loader.state_dict()
    dataset[:]
    before = shards(cache)
    write(data, 'data/train-00001-of-00003.parquet', rows=20, first=100, text=30)
    with pytest.raises(StreamError, match="have changed since they were cached.*'refuse'"):
        StreamingDataset(**remote, local=str(cache), on_changed_data='refuse')
    changed = StreamingDataset(**remote, local=str(cache), batch_size=5)
    kept = shards(cache)
    assert {name.split('-')[1] for name in before} == {'00000', '00001', '00002'}
    assert kept == {name: time for name, time in before.items() if '00001' not in name}
    assert ids(changed) == [*range(20), *range(100, 120), *range(40, 60)]
    with pytest.raises(ResumeError, match='stream_0'):
        StreamingDataLoader(changed, batch_size=5).load_state_dict(state)


def test_the_same_data_elsewhere_resume(data: Path, tmp_path: Path) -> None:
    loader = StreamingDataLoader(
        StreamingDataset(remote=str(data), local=str(tmp_path / 'a'), batch_size=5), batch_size=5
    )
    first, second, *_ = (batch['id'].tolist() for batch in loader)
    loader = StreamingDataLoader(
        StreamingDataset(remote=str(data), local=str(tmp_path / 'a'), batch_size=5), batch_size=5
    )
    assert next(iter(loader))['id'].tolist() == first
    state = loader.state_dict()
    data.rename(tmp_path / 'moved')
    for path in (tmp_path / 'moved').rglob('*.parquet'):
        os.utime(path, (1, 1))
    moved = StreamingDataset(
        remote=str(tmp_path / 'moved/data'), local=str(tmp_path / 'b'), batch_size=5, columns=['id']
    )
    resumed = StreamingDataLoader(moved, batch_size=5)
    resumed.load_state_dict(state)
    assert next(iter(resumed))['id'].tolist() == second


def test_an_object_that_changes_during_a_run_is_an_error(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'), download_retry=0)
    write(data, 'data/train-00000-of-00003.parquet', rows=2)
    with pytest.raises((StorageError, FormatError), match='train-00000'):
        dataset[10]


@pytest.mark.parametrize('text', [20, 20_000], ids=['estimated well', 'larger than estimated'])
def test_a_limit_holds(tmp_path: Path, text: int) -> None:
    # A long text that all rows of a group share takes little room in its file.
    table = pa.table({'id': list(range(400)), 'text': [f'{i // 5}'.rjust(text) for i in range(400)]})
    (tmp_path / 'data').mkdir()
    pq.write_table(table, tmp_path / 'data/a.parquet', row_group_size=5)
    limit = 15_000 + 4 * 5 * text
    dataset = StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'cache'), cache_limit=limit)
    for number in np.random.default_rng(0).integers(400, size=60).tolist():
        assert dataset[number] == {'id': number, 'text': f'{number // 5}'.rjust(text)}
        assert sum(path.stat().st_size for path in (tmp_path / 'cache').rglob('*') if path.is_file()) <= limit
    assert dataset.pool.streams[0].cache.stats.counts.evictions > 0
    with pytest.raises(ConfigError, match='cache_limit'):
        StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'other'), cache_limit=5 * text)[0]


def test_a_damaged_shard_is_made_again(data: Path, tmp_path: Path) -> None:
    StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'))[:]
    short, empty, whole = sorted((tmp_path / 'cache').rglob('*.mds'))[:3]
    short.write_bytes(short.read_bytes()[:-1])
    empty.write_bytes(b'')
    before = whole.stat().st_mtime_ns
    dataset = StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'))
    assert ids(dataset) == list(range(60))
    assert dataset.pool.streams[0].cache.stats.counts.shards_fetched == 2
    assert whole.stat().st_mtime_ns == before


def test_a_damaged_file_is_an_error_that_names_it(data: Path, tmp_path: Path) -> None:
    path = data / 'data/train-00001-of-00003.parquet'
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    dataset = StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'))
    assert dataset[0]['id'] == 0
    with pytest.raises(FormatError, match='train-00001'):
        dataset[20]


class Slow(LocalStore):
    """A folder that notes each request, and stops at one file's rows for good."""

    def __init__(self, root: str, log: Path) -> None:
        super().__init__(root)
        self.log = log
        self.stops_at = ''

    def get(self, key: str, out: BinaryIO, **options: Any) -> str:
        with open(self.log, 'a') as file:
            file.write(f'{json.dumps([key, options.get("offset", 0), options.get("size")])}\n')
        if self.stops_at and self.stops_at in key and 0 < options.get('offset', 0) < 100:
            out.write(b'PA')
            signal.pause()
        return super().get(key, out, **options)


def requests(log: Path) -> list[list[Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.usefixtures('own_stores')
def test_a_killed_run_leaves_a_cache_that_the_next_one_uses(data: Path, tmp_path: Path) -> None:
    log, stops_at = tmp_path / 'log', ['train-00001']

    def open_slow(url: str, options: object) -> Slow:
        store = Slow(url.removeprefix('slow://'), log)
        store.stops_at = stops_at[0]
        return store

    register_store('slow', open_slow)

    def run() -> StreamingDataset:
        return StreamingDataset(remote=f'slow://{data}', local=str(tmp_path / 'cache'))

    child = processes.Process(target=lambda: run()[:])
    child.start()
    until(lambda: any('train-00001' in key and 0 < offset < 100 for key, offset, _ in requests(log)))
    until(lambda: len(shards(tmp_path / 'cache')) >= 4)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    before = shards(tmp_path / 'cache')
    asked = len(requests(log))
    stops_at[0] = ''
    assert ids(run()) == list(range(60))
    after = shards(tmp_path / 'cache')
    assert {name: time for name, time in after.items() if name in before} == before
    assert len(requests(log)) - asked == 12 - len(before)  # no footer is read again
    assert not (tmp_path / 'cache/.headrace').exists()


@pytest.mark.usefixtures('own_stores')
def test_processes_of_a_machine_index_once(data: Path, tmp_path: Path) -> None:
    log = tmp_path / 'log'
    register_store('slow', lambda url, options: Slow(url.removeprefix('slow://'), log))

    def read() -> None:
        assert ids(StreamingDataset(remote=f'slow://{data}', local=str(tmp_path / 'cache'))) == list(range(60))

    children = [processes.Process(target=read) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert sum(key.endswith('.parquet') for key, *_ in requests(log)) == 3 + 12  # footers and row groups


@pytest.mark.s3
def test_a_bucket_is_read_in_ranges_of_the_columns(tmp_path: Path, s3_server: S3Server) -> None:
    folder = tmp_path / 'data'
    folder.mkdir()
    rows = 2000
    table = pa.table(
        {
            'a': pa.array(np.random.default_rng(0).integers(1 << 60, size=rows)),
            'filler': [np.random.default_rng(i).bytes(500) for i in range(rows)],
            'id': list(range(rows)),
        }
    )
    for name in ('train', 'test'):
        pq.write_table(table, folder / f'{name}.parquet', row_group_size=500)
    size = (folder / 'train.parquet').stat().st_size
    bucket = s3_server.new_bucket()
    for path in folder.iterdir():
        put_bytes(s3_server.store(bucket), f'x/{path.name}', path.read_bytes())

    def read(local: str, **options: Any) -> int:
        dataset = StreamingDataset(remote=f's3://{bucket}/x', local=str(tmp_path / local), split='train', **options)
        assert ids(dataset) == list(range(rows))
        return dataset.pool.streams[0].cache.stats.counts.bytes_downloaded

    assert size * 0.8 < read('all') < size * 1.3
    assert read('some', columns=['id']) < size / 10


def test_a_cached_index_of_a_run_that_trusted_pickles_is_refused(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=str(data), local=str(tmp_path / 'cache'))
    path = tmp_path / 'cache/source.index'
    index = SourceIndex.from_bytes(path.read_bytes())
    index.source.columns['text'] = 'pkl'  # pyright: ignore[reportIndexIssue] - as of a format that has pickles
    path.write_bytes(index.to_bytes())
    store = dataset.pool.streams[0].cache.store
    assert isinstance(store, SourceStore)
    SourceData(store, allow_unsafe_types=True, has_where=False).read(path)
    with pytest.raises(FormatError, match="'text'.*allow_unsafe_types"):
        SourceData(store, allow_unsafe_types=False, has_where=False).read(path)
