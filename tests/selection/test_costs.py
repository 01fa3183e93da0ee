"""`cost`, `bucket` and `balance` of datasets: measured once, kept, resumed on other ranks, refused by name."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.config.build import build_dataset
from headrace.config.load import load_config
from headrace.dataset import sequence
from headrace.errors import ConfigError, ObjectNotFoundError, ResumeError, ShardError, StreamError
from headrace.order import lengths
from headrace.order.config import BatchCost
from headrace.packing import PackedDataset, Packing
from headrace.selection import costs as costs_module
from headrace.selection.costs import Measuring, measure_costs
from headrace.selection.selection import Shards
from headrace.sources.source_store import SourceStore
from headrace.testing.oracle import World, check_resume
from headrace.watching.record import loader_config
from tests.support.sources import token_files

SAMPLES = 240
LENGTHS = np.exp(np.random.default_rng(0).normal(3, 1, 2 * SAMPLES)).astype(int) + 1


def write(folder: Path, first: int = 0) -> Path:
    columns = {'id': 'int', 'tokens': 'ndarray:int32', 'size': 'int', 'text': 'str', 'half': 'float32', 'code': 'json'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=2000) as out:
        for number in range(first, first + SAMPLES):
            length = int(LENGTHS[number])
            tokens = np.full(length, number, np.int32)
            sample = {'id': number, 'tokens': tokens, 'size': length, 'text': 'ä' * length, 'half': np.float32(1)}
            out.write({**sample, 'code': None if number % 2 else [1]})
    return folder


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp('lengths') / 'data')


@pytest.fixture(scope='module')
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp('lengths') / 'more', SAMPLES)


def spread(dataset: StreamingDataset) -> float:
    """The padding of batches of 8, as a share."""
    found = [LENGTHS[dataset.plan().order.at(np.arange(k, k + 8))] for k in range(0, SAMPLES, 8)]
    return 1 - sum(map(sum, found)) / sum(8 * max(one) for one in found)


@pytest.mark.parametrize('cost', ['tokens', 'size', 'text'])
def test_lengths_and_numbers_are_costs(data: Path, cost: str) -> None:
    how: dict[str, Any] = {'local': str(data), 'shuffle': True, 'batch_size': 8}
    bucketed = StreamingDataset(**how, cost=cost, bucket=10)
    assert spread(bucketed) < 0.7 * spread(StreamingDataset(**how))
    ids = [sample['id'] for sample in bucketed]
    assert sorted(ids) == list(range(SAMPLES))


def test_costs_are_measured_once(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    how: dict[str, Any] = {'remote': str(data), 'local': str(tmp_path / 'cache'), 'batch_size': 8, 'cost': 'tokens'}
    with caplog.at_level(logging.INFO, 'headrace'):
        StreamingDataset(**how, bucket=4)
        assert 'Measured the cost' in caplog.text
        caplog.clear()
        StreamingDataset(**how, bucket=8)
        StreamingDataset(**how, balance=1)
        assert 'Measured the cost' not in caplog.text
        StreamingDataset(**how, bucket=8, subset=[[0, 100]])  # other samples are offered
        assert 'Measured the cost' in caplog.text


def test_a_cost_alone_says_what_the_settings_would_gain(
    data: Path, more: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said(how: dict[str, Any], *costs: str | None) -> str:
        caplog.clear()
        folders = zip((data, more), costs, strict=True)
        streams = [Stream(local=str(folder), name=folder.name, cost=cost) for folder, cost in folders]
        dataset = StreamingDataset(streams=streams, batch_size=8, shuffle=True, **how)
        loader = StreamingDataLoader(dataset, batch_size=8, collate_fn=collate)
        with caplog.at_level(logging.INFO, 'headrace.dataset'):
            for _ in range(2):
                next(iter(loader))
        return caplog.text

    assert said({}, 'tokens', 'size').count('`bucket: 64` would make it') == 1
    assert '`bucket' not in said({'bucket': 60}, 'tokens', 'size')
    assert '`bucket' not in said({}, 'tokens', None)
    ranks = said({'topology': Topology(world_size=4)}, 'tokens', 'size')
    assert 'the rank with the most work has ' in ranks
    assert 'padding' not in said({'topology': Topology(rank=1, world_size=4)}, 'tokens', 'size')


BUDGET: dict[str, Any] = {'budget': 12 * int(LENGTHS.max()), 'multiple': 12}
BATCHES: list[dict[str, Any]] = [{'bucket': 5}, {'balance': 1}, {'bucket': 5, 'balance': 2}]


@pytest.mark.parametrize(
    ('how', 'batching'),
    [
        *(
            pytest.param(how, batching, marks=[] if (n + m) % 2 else [pytest.mark.slow])
            for n, how in enumerate(BATCHES)
            for m, batching in enumerate(['random', 'stratified'])
        ),
        pytest.param({'batch_cost': BUDGET, 'bucket': 2}, 'random', marks=pytest.mark.slow),
        ({'batch_cost': BUDGET, 'bucket': 2, 'balance': 1}, 'random'),
    ],
    ids=str,
)
def test_a_run_resumes_on_other_ranks(data: Path, more: Path, how: dict[str, Any], batching: str) -> None:
    def loader(topology: Topology, workers: int) -> StreamingDataLoader:
        streams = [Stream(local=str(data), name='a'), Stream(local=str(more), name='b')]
        size = (96 if 'batch_cost' in how else 24) // topology.replicas
        dataset = StreamingDataset(
            streams=streams,
            cost='size',
            shuffle=True,
            batch_size=size,
            topology=topology,
            batching_method=batching,
            **how,
        )
        return StreamingDataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=collate)

    worlds = [World(ranks=1), World(ranks=4, nodes=2), World(ranks=3), World(ranks=2, workers=2)]
    check_resume(loader, worlds, epochs=2, every=4)


def test_batches_within_a_budget(data: Path) -> None:
    how: dict[str, Any] = {'local': str(data), 'batch_size': 48, 'shuffle': True, 'cost': 'size', 'batch_cost': BUDGET}
    loader = StreamingDataLoader(StreamingDataset(**how), collate_fn=collate, remainder='drop')
    for epoch in range(2):
        batches = [batch['id'] for batch in loader]
        assert len(batches) == loader.plan(epoch).total_batches
        assert sorted(int(i) for batch in batches for i in batch) == list(range(SAMPLES))
        assert all(len(batch) * LENGTHS[batch].max() <= BUDGET['budget'] for batch in batches)
        assert len({len(batch) for batch in batches}) > 1
    with pytest.raises(ConfigError, match='takes samples one by one. Use headrace.StreamingDataLoader'):
        iter(StreamingDataset(**how))
    with pytest.raises(ConfigError, match=f'may cost {12 * LENGTHS[:SAMPLES].max()}, but the budget is 99'):
        how['batch_cost'] = {'budget': 99, 'multiple': 12}
        StreamingDataset(**how)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {'id': torch.tensor([sample['id'] for sample in samples])}


def test_other_windows_and_costs_are_another_order(data: Path) -> None:
    how: dict[str, Any] = {'local': str(data), 'batch_size': 8, 'shuffle': True}
    state = StreamingDataset(**how, cost='size', bucket=5).state_dict(16)
    StreamingDataset(**how, cost='tokens', bucket=5).load_state_dict(state)  # the same numbers
    others: list[dict[str, Any]] = [{'cost': 'size', 'bucket': 6}, {}, {'cost': 'id', 'bucket': 5}]
    for other in others:
        with pytest.raises(ResumeError, match='bucket: 5 in the checkpoint|costs: '):
            StreamingDataset(**how, **other).load_state_dict(state)
    with pytest.raises(ConfigError, match='with `bucket` the global batch keeps its size'):
        dataset = StreamingDataset(**how, cost='size', bucket=5)
        dataset.load_state_dict(state)
        dataset.plan(start=16, global_batch_size=16)


def test_another_mixture_takes_over_at_the_end_of_a_window(data: Path, more: Path) -> None:
    how: dict[str, Any] = {'batch_size': 8, 'shuffle': True, 'cost': 'size', 'bucket': 5}
    first = StreamingDataset(streams=[Stream(local=str(data), name='a')], **how)
    for samples, works in ((40, True), (48, False)):
        streams = [Stream(local=str(data), name='a'), Stream(local=str(more), name='b')]
        both = StreamingDataset(streams=streams, on_mixture_change='continue', **how)
        if works:
            both.load_state_dict(first.state_dict(samples))
            seen = first.plan().order.at(np.arange(samples))
            rest = both.plan(start=samples).order.at(np.arange(samples, samples + 280))  # in the first pass
            assert not set(seen.tolist()) & {i for i in rest.tolist() if i < SAMPLES}
        else:
            with pytest.raises(ResumeError, match='takes over where a window ends, every 40 samples'):
                both.load_state_dict(first.state_dict(samples))


def test_a_run_without_buckets_continues_with_them(data: Path, more: Path) -> None:
    def dataset(*folders: Path, **how: Any) -> StreamingDataset:
        streams = [Stream(local=str(folder), name=folder.name) for folder in folders]
        change = {'on_mixture_change': 'continue', 'batch_size': 8, 'shuffle': True, 'num_canonical_nodes': 1}
        return StreamingDataset(streams=streams, cost='size', **change, **how)

    plain = dataset(data, more)
    for samples in range(8, 200, 24):
        then = dataset(data, more, bucket=5)
        then.load_state_dict(plain.state_dict(samples))
        seen = plain.plan().order.at(np.arange(samples))
        drawn = {name: sum(place.node_draws) for name, place in then.mixture.takeover.positions.items()}
        assert drawn == {'data': int((seen < SAMPLES).sum()), 'more': int((seen >= SAMPLES).sum())}


def kept_costs(cache: Path) -> Path:
    (found,) = (cache / '.headrace-costs').glob('*.costs')
    return found


def test_damaged_costs_are_measured_again(data: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {'remote': str(data), 'local': str(tmp_path), 'batch_size': 8, 'cost': 'size', 'bucket': 4}
    before = StreamingDataset(**how).order_config.costs
    kept = kept_costs(tmp_path)
    content = kept.read_bytes()
    (kept.parent / f'{"0" * 32}.costs.tmp').write_bytes(b'of a process that was killed')
    kept.write_bytes(content[:-8] + b'\0' * 8)
    assert StreamingDataset(**how).order_config.costs == before
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert kept.read_bytes() == content


def test_costs_by_the_rules_of_older_versions_are_measured_again(tmp_path: Path) -> None:
    facts: dict[str, Any] = {'infos': [], 'read': pytest.fail, 'title': 'a', 'folder': tmp_path, 'identity': 'data'}
    shards = Shards(sizes=np.array([3]), lengths_of=lambda shard, column: [np.array([10, 20, 30])], **facts)
    key, old = hashlib.blake2b(b'data\0size', digest_size=16), np.array([2, 2, 2], '<u4').tobytes()
    head = b'hrcosts1' + (3).to_bytes(8, 'little') + key.digest() + xxhash.xxh3_128_digest(old)
    (tmp_path / '.headrace-costs').mkdir()
    (tmp_path / '.headrace-costs' / f'{key.hexdigest()}.costs').write_bytes(head + old)
    entry = xxhash.xxh3_64_digest(old, seed=0) + old
    (tmp_path / '.headrace-costs' / f'{key.hexdigest()}.costs.part').write_bytes(entry)
    assert measure_costs(shards, 'size', None, Measuring()).values.tolist() == [10, 20, 30]


def test_the_batches_of_an_epoch_are_counted_once_for_each_machine(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def loader(**how: Any) -> StreamingDataLoader:
        options: dict[str, Any] = {'batch_size': 16, 'shuffle': True, 'columns': ['size'], 'cost': 'size', **how}
        options['batch_cost'], options['bucket'] = {'budget': 9000, 'multiple': 8}, 1
        return StreamingDataLoader(StreamingDataset(remote=str(data), local=str(tmp_path), **options))

    whole = [len([*loader(shuffle_seed=seed)]) for seed in (1, 2)]
    monkeypatch.setattr(lengths, '_FEW_SAMPLES', 0)
    monkeypatch.setattr(lengths, '_TOGETHER', 2)
    monkeypatch.setattr(lengths, '_NEAR', 2)
    caplog.set_level(logging.INFO, 'headrace')
    assert [len(loader(shuffle_seed=seed)) for seed in (1, 2, 1, 2)] == whole * 2
    assert caplog.text.count('Counting the batches of epoch 0, once for each machine') == 2
    counts = {path for path in (tmp_path / '.headrace-costs').iterdir() if path.stat().st_size < SAMPLES}
    assert len(counts) == 2
    for path in counts:
        path.write_bytes(path.read_bytes()[:-1] + b'7')  # damaged
    other = loader(shuffle_seed=1)
    other.dataset.progress.load(1, 0)
    assert (len(loader(shuffle_seed=1)), len(other)) == (whole[0], len([*other]))
    assert caplog.text.count('Counting the batches of epoch 1') == 1
    monkeypatch.setattr(sequence, 'MOST_COUNTED', SAMPLES - 1)
    with pytest.raises(TypeError, match='no length: with `batch_cost` epochs differ.* an epoch has 240. Limit'):
        len(other)
    monkeypatch.undo()
    monkeypatch.setattr(lengths, '_FEW_SAMPLES', 0)
    again = loader(shuffle_seed=2)
    shutil.rmtree(tmp_path / '.headrace-costs')
    (tmp_path / '.headrace-costs').touch()
    with pytest.warns(UserWarning, match='Each process works them out for itself'):
        assert len(again) == whole[1]


@pytest.mark.parametrize(
    ('made', 'cost'),
    [
        ('megatron', 'tokens'),
        ('datatrove', 'tokens'),
        ('blocks', 'tokens'),
        ('parquet', 'tokens'),
        ('parquet', 'text'),
        ('parquet', 'size'),
    ],
)
def test_costs_of_other_formats_are_read_without_the_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, cost: str
) -> None:
    lengths, options, most = write_other(tmp_path / 'data', made)
    remote, read = str(tmp_path / 'data'), list[int]()

    def counted(store: SourceStore, spans: Any) -> bytes:
        data = whole(store, spans)
        read.append(len(data))
        return data

    whole = SourceStore.read
    monkeypatch.setattr(SourceStore, 'read', counted)
    how: dict[str, Any] = {'batch_size': 8, 'cost': cost, 'bucket': 4, **options}
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / 'some'), subset=[[3, None]], **how)
    assert costs_of(dataset) == lengths[3:]
    assert not list((tmp_path / 'some').rglob('*.mds'))
    assert sum(read) <= most
    whole_shards = StreamingDataset(remote=remote, local=str(tmp_path / 'all'), batch_size=8, **options)
    assert len([*whole_shards]) == len(lengths)
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / 'all'), **how)  # of shards that are there
    assert costs_of(dataset) == lengths


def write_other(folder: Path, made: str) -> tuple[list[int], dict[str, Any], int]:
    """Data of another format; the lengths, the options, and the bytes that tell the lengths, at most."""
    folder.mkdir()
    lengths = (LENGTHS[:SAMPLES] + 1).tolist()
    documents = [[number % 7] * length for number, length in enumerate(lengths)]
    if made == 'megatron':
        halves = [[document[:1], document[1:]] for document in documents]
        (folder / 'a.bin').write_bytes((found := token_files.megatron(halves))[0])
        (folder / 'a.idx').write_bytes(found[1])
        return lengths, {}, SAMPLES * 16 + 8
    if made == 'datatrove':
        for name, data in token_files.datatrove('a.ds', documents).items():
            (folder / name).write_bytes(data)
        return lengths, {}, SAMPLES * 8
    if made == 'blocks':
        (folder / 'a.bin').write_bytes(token_files.raw(range(1000)))
        options = {'format': 'tokens', 'format_options': {'token_dtype': 'uint16', 'block_size': 30, 'keep_last': True}}
        return [30] * 33 + [10], options, 0
    pa = pytest.importorskip('pyarrow')
    import pyarrow.parquet as pq

    columns = {
        'filler': [bytes([number % 256]) * 5000 for number in range(SAMPLES)],
        'tokens': [np.array(document, np.int32) for document in documents],
        'text': ['ä' * length for length in lengths],
        'size': lengths,
    }
    pq.write_table(pa.table(columns), folder / 'a.parquet', row_group_size=50, compression='none', use_dictionary=False)
    return lengths, {}, sum(lengths) * 5


def costs_of(dataset: StreamingDataset) -> list[int]:
    return np.concatenate([stream.costs.values for stream in dataset.pool.streams if stream.costs is not None]).tolist()


def test_damaged_lengths_are_refused(tmp_path: Path) -> None:
    write_other(tmp_path / 'data', 'megatron')
    how: dict[str, Any] = {'batch_size': 8, 'local': str(tmp_path / 'cache')}
    StreamingDataset(remote=str(tmp_path / 'data'), **how)
    before = (tmp_path / 'data/a.idx').stat()
    idx = bytearray((tmp_path / 'data/a.idx').read_bytes())
    idx[40] ^= 1
    (tmp_path / 'data/a.idx').write_bytes(idx)
    os.utime(tmp_path / 'data/a.idx', ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ShardError, match='the lengths of its documents contradict their tokens'):
        StreamingDataset(remote=str(tmp_path / 'data'), **how, cost='tokens', bucket=4)


@pytest.mark.parametrize('damage', [None, 'cut', 'bit'])
def test_a_killed_measurement_goes_on(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str | None
) -> None:
    how: dict[str, Any] = {'remote': str(data), 'local': str(tmp_path), 'batch_size': 8, 'cost': 'size', 'bucket': 4}
    killed = os.fork()
    if not killed:
        checksum = costs_module._checksum

        def killing(shard: int, costs: bytes) -> bytes:
            if shard == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return checksum(shard, costs)

        costs_module._checksum = killing
        StreamingDataset(**how)
    assert os.waitpid(killed, 0)[1] == signal.SIGKILL
    (part,) = (tmp_path / '.headrace-costs').glob('*.part')
    content = bytearray(part.read_bytes())
    content[-5] ^= damage == 'bit'
    part.write_bytes(content[: -3 if damage == 'cut' else None])
    with caplog.at_level(logging.INFO, 'headrace'):
        dataset = StreamingDataset(**how)
    assert f' {2 if damage else 3} of them were measured before.' in caplog.text
    assert costs_of(dataset) == LENGTHS[:SAMPLES].tolist()
    assert [path.suffix for path in part.parent.iterdir()] == ['.costs']


def test_a_shard_that_is_not_there_is_named_and_not_the_cache(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / 'data')
    (tmp_path / 'data' / 'shard.00002.mds').unlink()
    with pytest.raises(ObjectNotFoundError, match=r'shard\.00002\.mds'):
        StreamingDataset(
            remote=str(tmp_path / 'data'), local=str(tmp_path / 'cache'), batch_size=8, cost='size', bucket=4
        )


def test_kept_costs_need_no_lock_and_come_back_if_they_are_deleted(data: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {'remote': str(data), 'local': str(tmp_path), 'batch_size': 8, 'cost': 'size', 'bucket': 4}
    dataset = StreamingDataset(**how)
    kept = kept_costs(tmp_path)
    holder = os.open(kept.parent, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    StreamingDataset(**how)  # would wait for ever
    os.close(holder)
    shutil.rmtree(kept.parent)
    copy = pickle.loads(pickle.dumps(dataset))
    assert kept.exists()
    assert copy.plan().ids(0).tolist() == dataset.plan().ids(0).tolist()


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ({'bucket': 4}, 'names no `cost`'),
        ({'balance': 1}, 'names no `cost`'),
        ({'batch_cost': 9000}, 'names no `cost`'),
        ({'bucket': 4, 'cost': 'token'}, "names the column 'token', but its columns are"),
        ({'bucket': 4, 'cost': 'half'}, 'A cost is a whole number'),
        ({'bucket': 4, 'cost': 'code'}, r'which has None \(NoneType\)'),
    ],
)
def test_costs_are_checked(data: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        StreamingDataset(local=str(data), batch_size=8, **how)


def test_packed_rows_have_one_length(data: Path) -> None:
    with pytest.raises(ConfigError, match='Rows of packed data have one length'):
        PackedDataset(local=str(data), packing=Packing(sequence_length=64, column='tokens'), cost='size', bucket=4)


def test_yaml_has_the_keys(data: Path, tmp_path: Path) -> None:
    path = tmp_path / 'data.yaml'
    path.write_text(
        f'global_batch_size: 8\ntrain: {{local: "{data}", cost: size, bucket: 4, balance: 2, shuffle: true}}\n'
    )
    config = load_config(path).train
    assert config is not None
    dataset = build_dataset(config, topology=Topology())
    assert dataset.order_config.bucket == 4
    assert spread(dataset) < spread(StreamingDataset(local=str(data), batch_size=8, shuffle=True))
    budget = f'{{budget: {BUDGET["budget"]}, multiple: 4}}'
    path.write_text(f'global_batch_size: 8\ntrain: {{local: "{data}", cost: size, batch_cost: {budget}}}\n')
    config = load_config(path).train
    assert config is not None
    assert build_dataset(config, topology=Topology()).order_config.batch_cost == BatchCost(BUDGET['budget'], 4)
    path.write_text(f'global_batch_size: 8\ntrain: {{local: "{data}", cost: size, batch_cost: {{rows: 8}}}}\n')
    with pytest.raises(ConfigError, match='batch_cost.*must be the budget of a global batch, a whole number'):
        load_config(path)


def test_the_record_of_a_run_has_the_settings(data: Path, tmp_path: Path) -> None:
    (tmp_path / 'a.csv').write_text('id;text\n' + ''.join(f'{n};{"x" * (n % 17)}\n' for n in range(64)))
    dataset = StreamingDataset(
        remote=str(tmp_path / 'a.csv'),
        local=str(tmp_path / 'cache'),
        format='csv',
        format_options={'delimiter': ';'},
        batch_size=8,
        shuffle=True,
        cost='text',
        bucket=4,
        batch_cost=8 * 16,
        balance=2,
    )
    recorded = loader_config(StreamingDataLoader(dataset, batch_size=8))
    assert recorded is not None
    config = load_config({'train': recorded}).train
    assert config is not None
    world = Topology(rank=1, world_size=2)
    again = build_dataset(config, topology=world).plan(global_batch_size=8, topology=world)
    assert (
        again.ids_of(range(8)).tolist() == dataset.plan(global_batch_size=8, topology=world).ids_of(range(8)).tolist()
    )
