"""The kinds of programs that MosaicML Streaming's documentation has, in our words, run on the alias."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import headrace
from headrace.errors import ConfigError, StreamError, UnknownNameError
from headrace.format.encodings.scalars import Int
from headrace.storage import StoreOptions, open_store, register_store

pytestmark = pytest.mark.usefixtures('alias')


def test_write_and_stream(tmp_path: Path) -> None:
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    remote, local = str(tmp_path / 'remote'), str(tmp_path / 'cache')
    columns = {'number': 'int', 'text': 'str', 'row': 'ndarray:float32:2'}
    with MDSWriter(out=remote, columns=columns, compression='zstd', hashes=['sha1', 'xxh64'], size_limit='1kb') as out:
        for i in range(100):
            out.write({'number': i, 'text': f'text {i}', 'row': np.full(2, i, np.float32)})

    dataset = StreamingDataset(
        remote=remote, local=local, shuffle=True, shuffle_algo='py1e', batch_size=10, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(dataset, batch_size=10)
    batches = [batch['number'] for batch in loader]
    state = loader.state_dict()

    assert sorted(torch.cat(batches).tolist()) == list(range(100))
    assert dataset[7]['text'] == 'text 7'
    assert [s['number'] for s in dataset[[1, -1]]] == [1, 99]
    assert dataset.size == dataset.num_samples == len(dataset) == dataset.length == 100
    loader.load_state_dict(state)


def test_attributes_of_a_dataset_of_two_streams(make_dataset: Any) -> None:
    from streaming import Stream, StreamingDataset

    a, b = make_dataset('a', 25), make_dataset('b', 47)
    dataset = StreamingDataset(
        streams=[Stream(local=str(a), proportion=0.25), Stream(local=str(b), proportion=0.75)],
        epoch_size=40,
        shuffle=True,
        shuffle_algo='py1e',
        batch_size=4,
        num_canonical_nodes=1,
        sampling_granularity=2,
        shuffle_seed=3,
    )

    assert dataset.num_streams == 2
    assert dataset.samples_per_stream.tolist() == [25, 47]
    assert int(dataset.samples_per_shard.sum()) == 72
    assert len(dataset.samples_per_shard) == dataset.num_shards
    assert dataset.sample_offset_per_stream.tolist() == [0, 25]
    assert dataset.shards_per_stream.sum() == dataset.num_shards
    assert dataset.shard_offset_per_stream.tolist() == [0, dataset.shards_per_stream[0]]
    assert dataset.stream_per_shard.tolist() == [0] * dataset.shards_per_stream[0] + [1] * dataset.shards_per_stream[1]
    shard, place = dataset.spanner[30]
    assert dataset.sample_offset_per_shard[shard] + place == 30
    assert dataset.stream_per_shard[shard] == 1
    assert (dataset.shuffle, dataset.shuffle_algo, dataset.batching_method) == (True, 'py1e', 'random')
    assert (dataset.sampling_method, dataset.sampling_granularity) == ('balanced', 2)
    assert dataset.epoch_size == 40
    assert [s.choose for s in dataset.streams] == [10, 30]
    assert dataset.cache_usage > 0
    assert [Path(s.local, s.split) for s in dataset.streams] == [a, b]

    units, ids = dataset.resample_streams(5)
    assert units.sum() == len(ids) == 40
    order = np.sort(dataset.plan(epoch=5).order.at(np.arange(40)))
    assert np.array_equal(order, np.sort(ids))
    of_one = dataset.resample_streams(5, 1)[1]
    assert len(of_one) == 30
    assert of_one.min() >= 25


def test_a_subclass_may_store_its_arguments(make_dataset: Any) -> None:
    from streaming import StreamingDataset

    class Stored(StreamingDataset):
        def __init__(self, **arguments: Any) -> None:
            for name, value in arguments.items():
                setattr(self, name, value)
            super().__init__(**arguments)
            for name, value in arguments.items():
                setattr(self, name, value)
            self.length, self.spanner = 1000, None

    arguments = dict(shuffle=True, shuffle_algo='py1e', shuffle_seed=5, num_canonical_nodes=1, epoch_size='20')
    path = str(make_dataset('data', 30))
    stored = Stored(local=path, batch_size=5, shuffle_block_size=None, **arguments)
    plain = StreamingDataset(local=path, batch_size=5, **arguments)

    assert (stored.length, stored.shuffle_block_size, len(stored)) == (1000, None, 20)
    assert [sample['id'] for sample in stored] == [sample['id'] for sample in plain]
    for name in ('shuffle_seed', 'num_canonical_nodes', 'epoch_size'):
        with pytest.raises(ConfigError, match=f'`{name}` is fixed'):
            setattr(stored, name, 7)


def test_the_next_epoch_can_be_set(make_dataset: Any) -> None:
    from streaming import StreamingDataset

    def made() -> Any:
        return StreamingDataset(
            local=str(make_dataset('data', 30)) if not Path(path).exists() else path, shuffle=True, batch_size=5
        )

    path = str(make_dataset('data', 30))
    one, other = made(), made()
    epochs = [[sample['id'] for sample in one] for _ in range(3)]
    assert one.next_epoch == 3

    other.next_epoch = 2
    assert [sample['id'] for sample in other] == epochs[2]
    with pytest.raises(ConfigError, match='at least 0'):
        other.next_epoch = -1


def test_resampling_is_refused_in_the_native_order(make_dataset: Any) -> None:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(make_dataset('data', 10)), batch_size=2)

    with pytest.raises(ConfigError, match="shuffle_algo='py1e'"):
        dataset.resample_streams(0)


def test_a_registered_stream(make_dataset: Any) -> None:
    from streaming import Stream, StreamingDataset
    from streaming.base.stream import streams_registry

    class Labelled(Stream):
        def __init__(self, label: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.label = label

    streams_registry.register('labelled', func=Labelled)
    dataset = StreamingDataset(
        local=str(make_dataset('data', 10)), stream_name='labelled', stream_config={'label': 'x'}, batch_size=2
    )

    assert [stream.label for stream in dataset.streams] == ['x']
    assert 'labelled' in streams_registry
    assert streams_registry.get('stream') is headrace.Stream
    assert streams_registry.register('twice')(Labelled) is streams_registry.get_all()['twice'] is Labelled
    with pytest.raises(UnknownNameError, match=r"streams_registry\.register\('other'"):
        StreamingDataset(local='x', stream_name='other')
    streams_registry.register('wrong', func=lambda **_: 5)
    with pytest.raises(ConfigError, match='must make a Stream'):
        StreamingDataset(local='x', stream_name='wrong')


def test_an_installed_package_may_name_stream_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_dataset: Any
) -> None:
    from streaming import StreamingDataset

    (tmp_path / 'own_streams.py').write_text('from streaming import Stream\nclass Installed(Stream): pass\n')
    (tmp_path / 'own_streams-1.dist-info').mkdir()
    (tmp_path / 'own_streams-1.dist-info' / 'METADATA').write_text('Name: own_streams\nVersion: 1\n')
    (tmp_path / 'own_streams-1.dist-info' / 'entry_points.txt').write_text(
        '[streaming_streams_registry]\ninstalled = own_streams:Installed\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    dataset = StreamingDataset(local=str(make_dataset('data', 10)), stream_name='installed', batch_size=2)

    assert type(dataset.streams[0]).__name__ == 'Installed'


def test_overrides_that_would_be_ignored_are_refused(make_dataset: Any) -> None:
    from streaming import Stream, StreamingDataset

    class Own(Stream):
        def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
            return from_basename

    class Order(StreamingDataset):
        def resample_streams(self, epoch: int, stream_id: int | None = None) -> Any:
            return super().resample_streams(epoch, stream_id)

    with pytest.raises(ConfigError, match='Own overrides `_download_file`.*register_store'):
        Own(local='x')
    with pytest.raises(ConfigError, match='Order overrides `resample_streams`.*plan'):
        Order(local=str(make_dataset('data', 10)))


@pytest.mark.usefixtures('own_encodings')
def test_an_encoding_of_ones_own_by_assignment(tmp_path: Path) -> None:
    from streaming import LocalDataset, MDSWriter
    from streaming.base.format.mds.encodings import Encoding, _encodings, is_mds_encoding

    class Point(Encoding):
        size = 8

        def encode(self, obj: Any) -> bytes:
            self._validate(obj, tuple)
            return np.array(obj, np.float32).tobytes()

        def decode(self, data: bytes) -> Any:
            return tuple(np.frombuffer(data, np.float32).tolist())

    class Scaled(Encoding):
        def __init__(self, factor: int = 1) -> None:
            self.factor = factor

        @classmethod
        def from_str(cls, text: str) -> Scaled:
            return cls(int(text))

        def encode(self, obj: Any) -> bytes:
            return str(obj * self.factor).encode()

        def decode(self, data: bytes) -> Any:
            return int(data) // self.factor

    _encodings['point'] = Point
    _encodings['scaled'] = Scaled
    with MDSWriter(out=str(tmp_path / 'data'), columns={'p': 'point', 's': 'scaled:10'}) as out:
        out.write({'p': (1.0, 2.0), 's': 4})
        with pytest.raises(AttributeError, match='tuple'):
            out.write({'p': [1, 2], 's': 4})

    assert LocalDataset(str(tmp_path / 'data'))[0] == {'p': (1.0, 2.0), 's': 4}
    assert is_mds_encoding('point')
    assert _encodings['point'] is Point
    assert 'point' in _encodings
    assert _encodings['int'] is Int
    assert isinstance(Int(), Encoding)
    with pytest.raises(ConfigError, match='Assign the class'):
        _encodings['other'] = Point()
    with pytest.raises(ConfigError, match='stay registered'):
        del _encodings['point']


@pytest.mark.usefixtures('own_encodings')
def test_an_encoding_may_replace_one_of_headrace(tmp_path: Path) -> None:
    """Published datasets do it: columns called uint8 that hold arrays of any length."""
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.format.mds.encodings import Encoding, _encodings

    class Latent(Encoding):
        def encode(self, obj: Any) -> bytes:
            return obj.tobytes()

        def decode(self, data: bytes) -> Any:
            return np.frombuffer(data, np.uint8).copy()

    _encodings['uint8'] = Latent
    with MDSWriter(out=str(tmp_path / 'data'), columns={'latent': 'uint8'}) as out:
        for i in range(8):
            out.write({'latent': np.full(6, i, np.uint8)})
    dataset = StreamingDataset(local=str(tmp_path / 'data'), batch_size=4)

    assert dataset[5]['latent'].tolist() == [5] * 6
    batches = list(DataLoader(dataset, batch_size=4))
    assert torch.cat([batch['latent'] for batch in batches]).tolist() == [[i] * 6 for i in range(8)]


def test_indexes_are_merged(tmp_path: Path, make_dataset_in: Any) -> None:
    from streaming import StreamingDataset
    from streaming.base.util import merge_index

    root = tmp_path / 'parts'
    for number in range(3):
        make_dataset_in(root, str(number), 10, first=10 * number)
    merge_index(str(root), keep_local=True)

    assert [s['id'] for s in StreamingDataset(local=str(root), batch_size=2)[:]] == list(range(30))


def test_one_shard_by_its_entry(make_dataset: Any) -> None:
    from streaming.base.format import get_index_basename, reader_from_json

    folder = make_dataset('data', 30)
    entries = json.loads((folder / get_index_basename()).read_text())['shards']
    reader = reader_from_json(str(folder), None, entries[1])
    first = entries[0]['samples']

    assert len(reader) == reader.size == reader.samples == entries[1]['samples']
    assert [sample['id'] for sample in reader] == list(range(first, first + len(reader)))
    assert reader[-1]['id'] == first + len(reader) - 1
    assert reader.column_names == ['id', 'row']
    assert reader.file_pairs[0][0].basename.endswith('.mds')
    assert reader.get_raw_size() == reader.get_max_size() == entries[1]['raw_data']['bytes']
    assert reader.get_zip_size() is None
    reader.validate(allow_unsafe_types=False)


def test_files_to_and_from_stores(tmp_path: Path) -> None:
    from streaming.base.storage import CloudDownloader, CloudUploader, S3Downloader

    folder, remote = tmp_path / 'local', tmp_path / 'remote'
    uploader = CloudUploader.get((str(folder), str(remote)))
    (folder / 'a.txt').write_text('a')
    assert uploader.list_objects() == [str(folder / 'a.txt')]
    uploader.upload_file('a.txt')
    assert (remote / 'a.txt').read_text() == 'a'
    assert not (folder / 'a.txt').exists()

    CloudDownloader.direct_download(str(remote / 'a.txt'), str(tmp_path / 'b' / 'a.txt'))
    assert (tmp_path / 'b' / 'a.txt').read_text() == 'a'
    with pytest.raises(FileNotFoundError):
        CloudDownloader.get(str(remote)).download(str(remote / 'c.txt'), str(tmp_path / 'c.txt'))
    assert not list(tmp_path.glob('c.txt*'))
    assert S3Downloader is CloudDownloader
    with pytest.raises(ValueError, match='`remote` is None'):
        CloudDownloader.get().download(None, str(tmp_path / 'c.txt'))
    (folder / 'x').touch()
    with pytest.raises(FileExistsError, match='not empty'):
        CloudUploader.get(str(folder))
    assert CloudUploader.get(str(folder), exist_ok=True).remote is None
    for out in ((), (str(folder),), (str(folder), None), (str(folder), str(remote), 'more')):
        with pytest.raises(ValueError, match='`out`'):
            CloudUploader.get(out)


@pytest.mark.usefixtures('own_stores')
def test_files_of_a_bucket(tmp_path: Path) -> None:
    from streaming.base.storage import CloudUploader

    class Bucket:
        def __init__(self, url: str, options: StoreOptions) -> None:
            self.url, self.folder = url, open_store(tmp_path / url.partition('://')[2])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.folder, name)

    register_store('bucket', Bucket)
    uploader = CloudUploader.get('bucket://bucket/some/folder', keep_local=True, retry=0)
    Path(uploader.local, 'b').mkdir()
    Path(uploader.local, 'b', 'c.txt').write_text('c')
    uploader.upload_file('b/c.txt')

    assert (tmp_path / 'bucket' / 'some' / 'folder' / 'b' / 'c.txt').read_text() == 'c'
    assert uploader.list_objects() == uploader.list_objects('b') == ['some/folder/b/c.txt']
    assert Path(uploader.local, 'b', 'c.txt').exists()


def test_small_functions(tmp_path: Path) -> None:
    from streaming.base import util

    assert util.get_list_arg('a,b') == ['a', 'b']
    assert util.get_list_arg('') == []
    assert util.bytes_to_int('2kb') == 2048
    assert util.number_abbrev_to_int('1.5k') == 1500
    assert util.clean_stale_shared_memory() is None
    assert 'headrace[spark]' in util.get_import_exception_message('pyspark', 'spark')
    util.wait_for_file_to_exist(str(tmp_path), 0.01, 1, 'no')
    with pytest.raises(RuntimeError, match='gone'):
        util.wait_for_file_to_exist(str(tmp_path / 'x'), 0.001, 0.002, 'gone')

    calls: list[str] = []

    @util.retry([KeyError], clean_up_fn=lambda: calls.append('clean'), num_attempts=3, initial_backoff=0, max_jitter=0)
    def third() -> str:
        calls.append('call')
        if calls.count('call') < 3:
            raise KeyError
        return 'done'

    assert third() == 'done'
    assert calls == ['call', 'clean', 'call', 'clean', 'call']

    @util.retry(num_attempts=2, initial_backoff=0, max_jitter=0)
    def never() -> None:
        raise OSError('never')

    with pytest.raises(OSError, match='never'):
        never()
    assert util.retry(len)('abc') == 3
    with pytest.raises(ValueError, match='num_attempts'):
        util.retry(num_attempts=0)


def test_ranks_and_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    from streaming.base import distributed, partition, sampling, shuffle
    from streaming.base.world import World

    assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    assert (distributed.get_local_rank(), distributed.get_local_world_size()) == (0, 1)
    assert distributed.all_gather_object('x') == ['x']
    monkeypatch.setenv('WORLD_SIZE', '4')
    monkeypatch.setenv('RANK', '0')
    with pytest.raises(RuntimeError, match='There are 4 ranks, but no process group'):
        distributed.all_gather_object('x')
    monkeypatch.undo()
    assert distributed.barrier() is None
    world = World(2, 4, 3, 17)
    assert (world.rank, world.node, world.rank_of_node, world.worker_of_rank) == (5, 1, 1, 2)
    assert world.replicate(2).rank == 2
    assert not world.is_leader
    assert World.detect().is_leader
    assert vars(world.copy()) == world.to_json()
    assert world.detect_workers().num_workers == 8

    ids = partition.get_partitions('relaxed', 24, 2, 2, 1, 1, 3)
    assert ids.shape == (2, 1, 1, 4, 3)
    assert sorted(ids.ravel().tolist()) == list(range(24))
    shuffled = shuffle.get_shuffle('py1s', np.array([8, 8, 8]), 2, 9176, 0, 16)
    assert sorted(shuffled.tolist()) == list(range(24)) != shuffled.tolist()
    assert sampling.get_sampling(np.array([8, 8, 8]), 10, 1, 9176, 0, True).sum() == 10
    with pytest.raises(ValueError, match='py1e'):
        shuffle.get_shuffle('py9', np.array([8]), 1, 0, 0, 8)


def test_weights_and_errors_match_those_that_programs_catch(make_dataset: Any) -> None:
    from streaming import Stream, StreamingDataset

    with pytest.raises(ValueError, match='at most one of `proportion`'):
        Stream(local='x', proportion=1, repeat=2)
    with pytest.raises(StreamError):
        StreamingDataset()
    with pytest.raises(RuntimeError, match='No `remote` provided'):
        StreamingDataset(local=str(make_dataset('data', 5)) + '-absent')
