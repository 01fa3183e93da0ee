"""Shards on their way through threads: order, bounded memory, errors."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.dataset.writing.pipeline import ShardPipeline
from headrace.format import CollectedShard, MDSEncoder
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore


def shards(count):
    """Shards of one sample each."""
    encoder = MDSEncoder({'id': 'int'}, size_limit=1)
    found = [encoder.collect({'id': i}) for i in range(count + 1)]
    return [shard for shard in found if shard is not None]


def nothing(*_):
    pass


def test_entries_are_in_the_order_of_the_shards():
    first, *others = shards(4)
    later = threading.Event()

    def pack():
        assert later.wait(60)
        return first.pack_pieces()

    pipeline = ShardPipeline(
        nothing, lambda info: later.set() if '3' in info.files[0].raw.basename else None, nothing, threads=2,
        packed_ahead=3,
    )  # fmt: skip
    for shard in (CollectedShard(0, 1, pack), *others):
        pipeline.put(shard)
    assert [info.files[0].raw.basename for info in pipeline.finish()] == [f'shard.0000{i}.mds' for i in range(4)]


def test_memory_is_bounded_by_a_number_of_shards():
    events, may_pack = [], threading.Event()

    def pack_of(shard):
        def pack():
            assert may_pack.wait(60)
            events.append('packed')
            return shard.pack_pieces()

        return CollectedShard(shard.number, 1, pack)

    pipeline = ShardPipeline(nothing, nothing, nothing, threads=1, packed_ahead=2)
    first, second, third = map(pack_of, shards(3))
    pipeline.put(first)
    pipeline.put(second)
    putter = threading.Thread(target=lambda: (pipeline.put(third), events.append('put')))
    putter.start()
    may_pack.set()
    putter.join()
    assert events.index('packed') < events.index('put')
    assert len(pipeline.finish()) == 3


class NoSecondShard(LocalStore):
    """A store that refuses one shard."""

    def put(self, key, source, *, size):
        if key == 'shard.00001.mds':
            raise OSError(28, 'No space left on device')
        super().put(key, source, size=size)


def test_an_error_of_a_thread_is_raised_by_the_next_write_and_names_the_shard(tmp_path, own_stores):
    register_store('full', lambda url, _: NoSecondShard(Path(url.removeprefix('full://'))))
    with (
        pytest.raises(OSError, match='No space left') as raised,
        MDSWriter(out=f'full://{tmp_path}/remote', columns={'id': 'int'}, size_limit=400, retry=0) as writer,
    ):
        for i in range(1_000_000):
            writer.write({'id': i})
    assert i < 999_999
    assert raised.value.__notes__ == ['While storing shard 1 of the dataset. None is begun after it.']
    assert not (tmp_path / 'remote' / 'index.json').exists()


def test_an_error_in_the_last_shards_is_raised_by_finish(tmp_path, own_stores):
    register_store('full', lambda url, _: NoSecondShard(Path(url.removeprefix('full://'))))
    writer = MDSWriter(out=f'full://{tmp_path}/remote', columns={'id': 'int'}, size_limit=400, retry=0)
    writer.write_batch({'id': range(20)})
    with pytest.raises(OSError, match='No space left'):
        writer.finish()
    with pytest.raises(OSError, match='No space left'):
        writer.write({'id': 1})
    writer.abort()


@pytest.mark.parametrize('options', [{}, {'compression': 'zstd', 'hashes': ['xxh64']}])
def test_batches_and_samples_make_the_same_folder(tmp_path, options):
    for name in ('batches', 'samples'):
        with MDSWriter(out=str(tmp_path / name), columns={'id': 'int'}, size_limit=1000, **options) as writer:
            if name == 'batches':
                writer.write_batch({'id': range(300)})
                assert writer.num_samples == 300
                writer.write_batch({'id': range(300, 500)})
            else:
                for i in range(500):
                    writer.write({'id': i})
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ('batches', 'samples')]
    assert files[0] == files[1]
    assert len(files[0]) > 5


def test_the_progress_bar_shows_samples_bytes_and_the_time_left(tmp_path, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr('sys.stderr', shown)
    with MDSWriter(
        out=str(tmp_path / 'data'), columns={'id': 'int'}, size_limit=1000, progress_bar=True, total=500
    ) as writer:
        writer.write_batch({'id': range(250)})
        for i in range(250):
            writer.write({'id': i})
    last = shown.getvalue().split('\r')[-1]
    assert '500/500' in last
    assert 'samples/s' in last
    assert 'shards' in last
    assert 'B/s' in last
    assert len(StreamingDataset(local=str(tmp_path / 'data'))) == 500
