"""Erased samples are gone from shards, kept indexes and caches; every other sample stays as it is, and where it is."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace import JSONWriter, LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.cli import main
from headrace.convert import copy_dataset, erase, kept_indexes, merge_index, reshard, rollback
from headrace.convert.erase import empty_value
from headrace.errors import CacheError, ConfigError, ErasedError, FormatError
from headrace.format import IndexFile, parse_index
from headrace.format.encodings.registry import get_mds_encoded_size, get_mds_encoding, get_mds_encodings
from headrace.inspect import describe, verify
from headrace.storage.cache.fetch_lock import FetchLock
from headrace.storage.cache.index_fetch import IndexCheck, IndexFetch
from tests.support.programs.killed_children import in_a_child, killed_after
from tests.support.servers.s3 import S3Server

COLUMNS = {'id': 'int', 'text': 'str', 'x': 'float32', 'rows': 'ndarray', 'lang': 'str', 'any': 'json'}


@pytest.fixture(autouse=True)
def no_other_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Erasing looks into all caches of this machine's folder for temporary files, where many tests leave some."""
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path_factory.mktemp('caches')))


def secret(i: int) -> str:
    return f'<secret of {i}>'


def sample(i: int) -> dict[str, Any]:
    rows = np.full((i % 3 + 1, 2), i, np.int16)
    return {'id': i, 'text': secret(i) * (i % 4 + 1), 'x': i / 2, 'rows': rows, 'lang': f'l{i % 3}', 'any': [i]}


def write(out: Path | str, ids: range, **options: Any) -> None:
    with MDSWriter(out=str(out), columns=COLUMNS, size_limit=3000, **options) as writer:
        for i in ids:
            writer.write(sample(i))


def holds(folder: Path, i: int) -> bool:
    """Whether a file below the folder has a sample's text."""
    return any(secret(i).encode() in path.read_bytes() for path in folder.rglob('*') if path.is_file())


def fingerprint(folder: Path) -> str:
    file = IndexFile('test', allow_unsafe_types=True)
    file.read(folder / 'index.json')
    return file.fingerprint


def check(folder: Path, count: int, erased: set[int]) -> None:
    """Each sample but the erased ones is at its place, and unchanged."""
    dataset = LocalDataset(str(folder))
    assert len(dataset) == count
    for i in range(count):
        if i in erased:
            with pytest.raises(ErasedError, match=f'sample id {i}'):
                dataset[i]
        else:
            found, expected = dataset[i], sample(i)
            assert found.pop('rows').tolist() == expected.pop('rows').tolist()
            assert found == expected
    report = verify(folder, jobs=1)
    assert report.is_good
    indexes = len(list(folder.rglob('index*.json')))
    assert (report.erased, report.unknown_files) == (len(erased), indexes - 1)
    assert describe(folder).num_erased == len(erased)
    assert not [path.name for path in folder.rglob('.*')]


@pytest.mark.parametrize('options', [{}, {'hashes': ['sha1', 'xxh64']}, {'compression': 'zstd', 'hashes': ['md5']}])
def test_erased(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, range(200), **options)
    before = fingerprint(tmp_path)
    rng, erased = random.Random(1), set[int]()
    for _ in range(3):
        ids = {rng.randrange(230) for _ in range(12)}
        here = {i for i in ids if i < 200} - erased
        dry = erase(tmp_path, ids, dry_run=True)
        assert dry == erase(tmp_path, [str(i) for i in ids])
        assert (dry.samples, dry.missing) == (len(here), len(ids) - len(here))
        erased |= here
        check(tmp_path, 200, erased)
        assert fingerprint(tmp_path) == before
        if 'compression' not in options:
            assert [i for i in range(200) if not holds(tmp_path, i)] == sorted(erased)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4)
    stored = [dataset.pool.map.locate_one(i) for i in sorted(erased)]
    for shard, row in stored:
        reader = dataset.pool.shards.open(shard).value
        assert {**reader.sample(row), 'rows': 0} == {'id': 0, 'text': '', 'x': 0, 'rows': 0, 'lang': '', 'any': 0}


def test_columns_that_stay(tmp_path: Path) -> None:
    write(tmp_path, range(50), cost='text')
    options: dict[str, Any] = {
        'batch_size': 16,
        'batch_cost': 600,
        'shuffle': True,
        'cost': 'text',
        'where': {'lang': 'l1'},
    }

    def batches() -> tuple[str, list[list[int]]]:
        dataset = StreamingDataset(local=str(tmp_path), **options)
        plan = dataset.run.plan(0, 0, dataset.batch_spec())
        return dataset.pool.streams[0].fingerprint, [plan.ids(k).tolist() for k in range(plan.num_batches)]

    before = batches()
    report = erase(tmp_path, range(20, 25), keep=['lang'])
    assert report.samples == 5
    assert batches() == before
    with pytest.raises(ConfigError, match=r"--keep.*\['id'\]"):
        erase(tmp_path, [1], keep=['id'])


def test_a_column_of_texts_names_several_samples(tmp_path: Path) -> None:
    write(tmp_path, range(30))
    assert erase(tmp_path, ['l1'], column='lang').samples == 10
    check(tmp_path, 30, set(range(1, 30, 3)))


def test_a_checkpoint_from_before_an_append(tmp_path: Path) -> None:
    """The run goes on with the shards of then; the appended ones do not disturb, before or after the erasure."""
    write(tmp_path, range(60))
    options: dict[str, Any] = {'local': str(tmp_path), 'batch_size': 4, 'shuffle': True, 'columns': ['id']}
    loader = StreamingDataLoader(StreamingDataset(**options), batch_size=4)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), [batch['id'].tolist() for batch in batches]
    erase(tmp_path, [5])
    write(tmp_path, range(60, 80), append=True)
    erase(tmp_path, [6, 70])
    loader = StreamingDataLoader(StreamingDataset(**options), batch_size=4)
    loader.load_state_dict(state)
    for ids, batch in zip(rest, loader, strict=True):
        found = zip(ids, batch['id'].tolist(), loader.own_bad_rows.tolist() or [False] * 4, strict=True)
        assert all(is_erased == (a in (5, 6)) and (is_erased or a == b) for a, b, is_erased in found)


@pytest.mark.parametrize('mode', ['delta', 'next_pass'])
def test_an_erasure_inside_a_run_that_grows(tmp_path: Path, mode: Any) -> None:
    """The next epoch follows it, in a running process and in one that resumes."""

    def loader(cache: str) -> StreamingDataLoader:
        place: dict[str, Any] = {'remote': str(tmp_path / 'data'), 'local': str(tmp_path / cache)}
        return StreamingDataLoader(
            StreamingDataset(**place, batch_size=5, on_growth=mode, columns=['id']), batch_size=5
        )

    write(tmp_path / 'data', range(50))
    running = loader('a')
    assert sum(len(batch['id']) for batch in running) == 50
    state = running.state_dict()
    erase(tmp_path / 'data', [3, 49])
    write(tmp_path / 'data', range(50, 70), append=True)
    erase(tmp_path / 'data', [55])
    resumed = loader('b')
    resumed.load_state_dict(state)
    found = [[batch['id'].tolist() for batch in each] for each in (running, resumed)]
    assert found[0] == found[1]
    seen = {i for batch in found[0] for i in batch}
    assert seen == set(range(50 if mode == 'delta' else 0, 70)) - {3, 49, 55}


def test_kept_indexes_and_parts(tmp_path: Path) -> None:
    write(tmp_path, range(40))
    write(tmp_path / 'day2', range(40, 80), compression='zstd')
    write(tmp_path / 'other', range(500, 540))
    merge_index([str(tmp_path / 'index.json'), str(tmp_path / 'day2' / 'index.json')], tmp_path)
    write(tmp_path, range(80, 100), append=True)
    erased = {3, 39, 45, 90}
    assert erase(tmp_path, [*erased, 501]).missing == 1
    assert [i for i in [*range(40), *range(80, 100)] if not holds(tmp_path, i)] == [3, 39, 90]
    assert holds(tmp_path, 501)  # of another dataset
    write(tmp_path, range(100, 110), append=True)
    for place, count, gone in ((tmp_path, 110, erased), (tmp_path / 'day2', 40, {5})):
        dataset = LocalDataset(str(place))
        assert [i for i in range(count) if i in dataset.pool.erased.ids] == sorted(gone)
        assert dataset[count - 1]['id'] in (109, 79)
    (kept,) = kept_indexes(tmp_path)
    rollback(tmp_path, kept.name)
    assert LocalDataset(str(tmp_path)).pool.erased.ids.tolist() == [3, 39]
    merge_index([str(tmp_path / 'index.json'), str(tmp_path / 'day2' / 'index.json')], tmp_path)
    assert LocalDataset(str(tmp_path)).pool.erased.ids.tolist() == [3, 39, 45]
    copy_dataset(tmp_path, tmp_path.parent / 'copy')
    check(tmp_path.parent / 'copy', 80, {3, 39, 45})


@pytest.mark.parametrize('order', ['stored', 'shuffled'])
def test_resharded(tmp_path: Path, order: Any) -> None:
    write(tmp_path / 'a', range(60))
    erase(tmp_path / 'a', range(30, 55))
    report = reshard(tmp_path / 'a', tmp_path / 'b', size_limit=700, order=order)
    assert (report.samples, report.erased) == (35, 25)
    assert sorted(one['id'] for one in LocalDataset(str(tmp_path / 'b'))) == [*range(30), *range(55, 60)]
    assert reshard(tmp_path / 'a', tmp_path / 'b', size_limit=700, order=order, resume=True).samples == 35


@pytest.mark.parametrize('hashes', [[], ['xxh64']])
def test_caches(tmp_path: Path, hashes: list[str]) -> None:
    data, caches = tmp_path / 'data', [tmp_path / 'caches' / name for name in 'ab']
    write(data, range(100), hashes=hashes)
    for cache in caches:
        assert len(list(StreamingDataset(remote=str(data), local=str(cache), batch_size=4))) == 100
    files = {path.name: path.stat().st_ino for path in caches[0].glob('shard*')}
    report = erase(data, [1, 2, 50], caches=[tmp_path / 'caches'])
    assert report.caches == tuple(map(str, caches))
    left = {path.name: path.stat().st_ino for path in caches[0].glob('shard*')}
    assert left.items() <= files.items()
    assert len(left) == len(files) - 2
    assert not holds(tmp_path, 1)
    erase(data, [99])
    assert holds(caches[1], 99)
    StreamingDataset(remote=str(data), local=str(caches[1]), batch_size=4)  # this one follows when it is opened
    assert not holds(caches[1], 99)


@pytest.mark.parametrize('damage', [b'', b'{', None])
def test_a_cache_without_its_index(tmp_path: Path, damage: bytes | None) -> None:
    write(tmp_path / 'data', range(40))
    list(StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'cache'), batch_size=4))
    if damage is None:
        (tmp_path / 'cache' / 'index.json').unlink()
    else:
        (tmp_path / 'cache' / 'index.json').write_bytes(damage)
    erase(tmp_path / 'data', [5], caches=[tmp_path / 'cache'])
    assert not holds(tmp_path, 5)


def test_a_cache_that_cannot_be_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are, and the error names it."""
    data, caches = tmp_path / 'data', [tmp_path / 'caches' / name for name in 'ab']
    write(data, range(40))
    for cache in caches:
        list(StreamingDataset(remote=str(data), local=str(cache), batch_size=4))
    fetch = IndexFetch.run

    def run(self: IndexFetch) -> None:
        if self.index.folder == caches[0]:  # its remote does not answer
            monkeypatch.setattr(IndexCheck, 'ask', lambda *_: None)
        fetch(self)
        monkeypatch.undo()

    monkeypatch.setattr(IndexFetch, 'run', run)
    with pytest.raises(CacheError, match=rf'in 1 of its caches, the first is {caches[0]}: The index could not'):
        erase(data, [5], caches=[tmp_path])
    assert [holds(folder, 5) for folder in (data, *caches)] == [False, True, False]
    assert erase(data, [5], caches=[tmp_path]).caches == tuple(map(str, caches))
    assert not holds(tmp_path, 5)


def test_a_part_of_a_merged_dataset(tmp_path: Path) -> None:
    part = tmp_path / 'days' / 'day2'
    write(tmp_path, range(40))
    write(part, range(40, 80))
    merge_index([str(tmp_path / 'index.json'), str(part / 'index.json')], tmp_path)
    cache = tmp_path.parent / 'cache'
    list(StreamingDataset(remote=str(part), local=str(cache), batch_size=4))
    before = state(tmp_path)
    with pytest.raises(ConfigError, match=r'is a part of .*Erase there'):
        erase(part, [50])
    assert state(tmp_path) == before
    assert erase(tmp_path, [50], caches=[cache]).caches == (str(cache),)
    assert not holds(cache, 50)


def test_runs_that_unpack(tmp_path: Path) -> None:
    """What a killed run has unpacked in the folder goes, and a running one ends before its shard is deleted."""
    write(tmp_path, range(40), compression='zstd')
    key = 'shard.00000.mds'
    killed = FetchLock(tmp_path, key)
    status, _ = in_a_child(lambda: _leave(killed), 0, str(tmp_path))
    assert status
    assert holds(tmp_path, 5)
    running = FetchLock(tmp_path, key)
    running.acquire()
    running.clear()
    index = (tmp_path / 'index.json').read_bytes()
    thread = threading.Thread(target=erase, args=(tmp_path, [5]))
    thread.start()
    while (tmp_path / 'index.json').read_bytes() == index:  # what follows is the end of the old shard
        thread.join(0.01)
        assert thread.is_alive()
    thread.join(0.5)
    temporary = running.temporary(0, 'raw')
    with running.create(temporary) as out:
        out.write(secret(5).encode())
    running.publish([(temporary, tmp_path / key)])
    running.release()
    thread.join()
    assert not holds(tmp_path, 5)
    check(tmp_path, 40, {5})


def _leave(lock: FetchLock) -> None:
    lock.acquire()
    with lock.create(lock.temporary(0, 'raw')) as out:
        out.write(secret(5).encode())
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize('change', [lambda text: f'\n {text}', lambda text: json.dumps(json.loads(text), indent=2)])
def test_an_index_that_another_program_wrote_again(tmp_path: Path, change: Callable[[str], str]) -> None:
    write(tmp_path, range(40))
    index = tmp_path / 'index.json'
    for i in (5, 6, 30):
        index.write_text(change(index.read_text()))
        before = fingerprint(tmp_path)
        erase(tmp_path, [i])
        assert fingerprint(tmp_path) == before
    check(tmp_path, 40, {5, 6, 30})


@pytest.mark.parametrize('ids', ['123', b'5', [b'5'], [5.0], [None], [True]])
def test_wrong_ids(tmp_path: Path, ids: Any) -> None:
    write(tmp_path, range(10))
    before = state(tmp_path)
    with pytest.raises(ConfigError, match='texts and whole numbers'):
        erase(tmp_path, ids)
    assert state(tmp_path) == before
    assert erase(tmp_path, np.array([5])).samples == 1


def test_shards_that_no_index_lists(tmp_path: Path) -> None:
    write(tmp_path, range(10))
    (tmp_path / 'shard.00099.mds').write_bytes(secret(5).encode())
    with pytest.warns(UserWarning, match=r'has 1, the first is shard\.00099\.mds'):
        erase(tmp_path, [5])


def state(folder: Path) -> dict[str, Any]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_killed_at_any_step(tmp_path: Path) -> None:
    """The next call ends with what a call without a kill would have left."""
    ids = {3, 30, 31, 57, 83}

    def make(folder: Path) -> Path:
        write(folder, range(60), compression='zstd')
        write(folder / 'day2', range(60, 90))
        merge_index([str(folder / 'index.json'), str(folder / 'day2' / 'index.json')], folder)
        return folder

    whole = make(tmp_path / 'whole')
    _, steps = in_a_child(lambda: erase(whole, ids, jobs=1), 0, str(whole))
    assert steps > 30
    for step in range(1, steps + 1, max(1, steps // 3)):
        folder = make(tmp_path / str(step))
        status, _ = in_a_child(partial(erase, folder, ids, jobs=1), step, str(folder))
        assert status
        if step % 2:
            erase(folder, [10], jobs=1)  # goes on, whatever is asked for
        erase(folder, ids, jobs=1)
        assert not holds(folder, 83)
        if not step % 2:
            assert state(folder) == state(whole)
        check(folder, 90, ids | ({10} if step % 2 else set()))


def test_a_merged_dataset_killed_at_any_step(tmp_path: Path) -> None:
    """What a kill leaves beside the shards of a part holds samples that later erasures report as gone."""

    def make(folder: Path) -> Path:
        write(folder / 'a', range(10))
        write(folder / 'deep' / 'b', range(10, 20), compression='zstd')
        merge_index(folder)
        return folder

    whole = make(tmp_path / 'whole')
    _, steps = in_a_child(lambda: erase(whole, [3, 13], jobs=1), 0, str(whole))
    for step in range(1, steps + 1, 7):
        folder = make(tmp_path / str(step))
        in_a_child(partial(erase, folder, [3, 13], jobs=1), step, str(folder))
        erase(folder, [3, 13], jobs=1)
        assert state(folder) == state(whole), step
        erase(folder, [4], jobs=1)
        assert not holds(folder, 3)
        assert not holds(folder, 4)
        assert not [*folder.rglob('.*')]


@pytest.mark.parametrize('left', ['.headrace-writing', '.headrace-written.00000', '.headrace-convert/plan.json'])
def test_a_part_that_a_killed_writer_was_adding_to_is_refused(tmp_path: Path, left: str) -> None:
    write(tmp_path / 'a', range(10))
    merge_index(tmp_path)
    (tmp_path / 'a' / left).parent.mkdir(exist_ok=True)
    (tmp_path / 'a' / left).write_text('{}')
    with pytest.raises(FileExistsError, match=f'has a/{re.escape(left)}'):
        erase(tmp_path, [3])
    (tmp_path / 'a' / left).rename(tmp_path / 'elsewhere')
    assert erase(tmp_path, [3]).samples == 1


def test_a_writer_between_a_kill_and_the_next_call(tmp_path: Path) -> None:
    write(tmp_path / 'whole', range(60))
    _, steps = in_a_child(lambda: erase(tmp_path / 'whole', [5, 40], jobs=1), 0, str(tmp_path / 'whole'))
    for step in range(2, steps, max(1, steps // 4)):
        folder = tmp_path / str(step)
        write(folder, range(60))
        in_a_child(partial(erase, folder, [5, 40], jobs=1), step, str(folder))
        write(folder, range(60, 80), append=True)
        erase(folder, [5, 40], jobs=1)
        check(folder, 80, {5, 40})


def test_nothing_replaces_a_dataset_whose_erasure_was_killed(tmp_path: Path) -> None:
    """The plan of the erasure names shards that another dataset has, too."""
    folder = tmp_path / 'data'
    for name in ('whole', 'other', 'data'):
        write(tmp_path / name, range(60))
    _, steps = in_a_child(lambda: erase(tmp_path / 'whole', [5, 40], jobs=1), 0, str(tmp_path / 'whole'))
    in_a_child(partial(erase, folder, [5, 40], jobs=1), steps // 2, str(folder))
    write(folder, range(60, 80), append=True)  # it takes the mark of the killed call over, and removes it
    before = state(folder)
    assert '.headrace-erasing/plan.json' in before
    for replace in (
        lambda: copy_dataset(tmp_path / 'other', folder, overwrite=True),
        lambda: rollback(folder, 'index.00001.json'),
        lambda: merge_index([str(folder / 'index.json')], folder),
    ):
        with pytest.raises(FileExistsError, match='unfinished erasure: .*Run `headrace erase` again'):
            replace()
        assert state(folder) == before
    erase(folder, [])
    check(folder, 80, {5, 40})
    copy_dataset(tmp_path / 'other', folder, overwrite=True)
    assert erase(folder, [5]).samples == 1


@pytest.mark.slow
@pytest.mark.parametrize('place', ['folder', pytest.param('s3', marks=pytest.mark.s3)])
def test_random_kills(tmp_path: Path, place: str, request: pytest.FixtureRequest) -> None:
    draws, url = random.Random(5), str(tmp_path / 'data')
    if place == 's3':
        url = f's3://{request.getfixturevalue("s3_server").new_bucket()}/data'
    write(url, range(1000))
    erase(url, [0])
    erased, kills = {0}, 0
    while kills < 30:
        ids = [draws.randrange(1000) for _ in range(10)]
        erased |= set(ids)
        kills += killed_after(lambda: erase(url, ids), draws.uniform(0, 0.15))[0]  # noqa: B023 - it is called at once
        erase(url, ids)
    folder = tmp_path / 'data'
    if place == 's3':
        copy_dataset(url, folder)
    check(folder, 1000, erased)
    assert [i for i in range(1000) if not holds(folder, i)] == sorted(erased)


@pytest.mark.s3
def test_in_a_store(tmp_path: Path, s3_server: S3Server) -> None:
    url = f's3://{s3_server.new_bucket()}/data'
    write(url, range(60), compression='zstd')
    cache = str(tmp_path / 'cache')
    assert len(list(StreamingDataset(remote=url, local=cache, batch_size=4))) == 60
    assert erase(url, [7, 8, 59], caches=[cache]).caches == (cache,)
    assert not holds(tmp_path, 7)
    copy_dataset(url, tmp_path / 'copy')
    check(tmp_path / 'copy', 60, {7, 8, 59})


def _json(folder: Path) -> None:
    with JSONWriter(out=str(folder), columns={'id': 'int'}) as writer:
        writer.write({'id': 1})


def _csv(folder: Path) -> None:
    (folder / 'a.csv').write_text('id,b\n1,2\n')


@pytest.mark.parametrize(('make', 'name'), [(_json, 'json'), (_csv, 'csv')])
def test_other_formats(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path)
    before = state(tmp_path)
    with pytest.raises(ConfigError, match=f'rewrites shards of MDS, but .* is of the format {name}'):
        erase(tmp_path, [1])
    assert state(tmp_path) == before


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        erase(tmp_path, [1])
    write(tmp_path, range(10))
    before = state(tmp_path)
    for column in ('x', 'rows', 'none'):
        with pytest.raises(ConfigError, match=rf'--column.*{column!r}.*id \(int\), lang \(str\)'):
            erase(tmp_path, [1], column=column)
    (tmp_path / '.headrace-written.00000').write_bytes(b'')
    with pytest.raises(FileExistsError, match='append=True, resume=True'):
        erase(tmp_path, [1])
    (tmp_path / '.headrace-written.00000').unlink()
    writer = MDSWriter(out=str(tmp_path), columns=COLUMNS, append=True)
    with pytest.raises(FileExistsError, match='another writer is writing'):
        erase(tmp_path, [1])
    writer.abort()
    assert state(tmp_path) == before


def test_an_index_that_lists_wrong_rows(tmp_path: Path) -> None:
    write(tmp_path, range(10))
    erase(tmp_path, [3])
    index = json.loads((tmp_path / 'index.json').read_bytes())
    ((name, erasure),) = index['erased'].items()
    assert erasure['rows'] == [3]
    for rows in ([3, 3], [10], [True], 3, [-1]):
        data = json.dumps({**index, 'erased': {name: {**erasure, 'rows': rows}}}).encode()
        with pytest.raises(FormatError, match='`erased` of an index says'):
            parse_index(data, source='test')
    for wrong in ({'other': erasure}, {name: [1]}, {name: {'rows': [1]}}, [1], {name: {**erasure, 'was': 1}}):
        with pytest.raises(FormatError, match='`erased` of an index says'):
            parse_index(json.dumps({**index, 'erased': wrong}).encode(), source='test')


def test_empty_values() -> None:
    for name in get_mds_encodings():
        encoding = get_mds_encoding(name)
        size = get_mds_encoded_size(name)
        encoding.decode(empty_value(name) if size is None else bytes(size))
    with pytest.raises(ConfigError, match='is not an encoding'):
        empty_value('nothing')


def test_pictures(tmp_path: Path) -> None:
    columns = {
        'id': 'str',
        'png': 'png',
        'jpeg': 'jpeg',
        'pil': 'pil',
        'list': 'list[png]',
        'o': 'pkl',
        'f': 'str_float',
    }
    picture = Image.effect_noise((20, 20), 50).convert('RGB')
    with MDSWriter(out=str(tmp_path), columns=columns) as writer:
        for i in range(5):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr('warnings.warn', lambda *_, **__: None)
                writer.write(
                    {
                        'id': str(i),
                        **dict.fromkeys(('png', 'jpeg', 'pil'), picture),
                        'list': [picture],
                        'o': i,
                        'f': 1.5,
                    }
                )
    assert erase(tmp_path, ['2']).samples == 1
    assert verify(tmp_path, jobs=1).is_good
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1, allow_unsafe_types=True)
    assert dataset[3]['png'].tobytes() == picture.tobytes()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / 'data', range(30))
    ids = tmp_path / 'ids.txt'
    ids.write_text('\ufeff3\r\n\n4\n77\n')
    (tmp_path / 'none').mkdir()
    arguments = ['erase', str(tmp_path / 'data'), '--ids', str(ids)]
    assert main([*arguments, '--cache', str(tmp_path / 'wrong')]) == 1
    assert '--cache' in capsys.readouterr().err
    assert main([*arguments, '--dry-run']) == 0
    assert '2 samples in 1 shard would be erased.\n1 id not found' in capsys.readouterr().out
    assert main([*arguments, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['samples'] == 2
    check(tmp_path / 'data', 30, {3, 4})
    assert main([*arguments, '--cache', str(tmp_path / 'none')]) == 0
    assert 'none holds no cache of it' in capsys.readouterr().out
    assert main(['verify', str(tmp_path / 'data')]) == main(['inspect', str(tmp_path / 'data')]) == 0
    out = capsys.readouterr().out
    assert '30 samples in all, 2 of them erased' in out
    assert '2 samples, which the shards hold as empty rows' in out
    assert main(['reshard', str(tmp_path / 'data'), str(tmp_path / 'new')]) == 0
    assert '2 erased samples left out' in capsys.readouterr().out
    config = tmp_path / 'train.yaml'
    config.write_text(f'train: {{local: {tmp_path}/data, shuffle: false, device_batch_size: 5}}\n')
    assert main(['explain', str(config), '--sample', '3']) == main(['explain', str(config)]) == 0
    out = capsys.readouterr().out
    assert re.search(r'Sample 3 is row 3 of shard 0 \(.*\) of stream stream_0; it is erased\.', out)
    assert out.count('  erased\n') == 2
    ids.write_bytes(b'\xff')
    assert main(arguments) == 1
    assert '--ids is a UTF-8 text' in capsys.readouterr().err


@pytest.mark.slow
def test_mosaicml_reads_all_other_rows(tmp_path: Path) -> None:
    streaming = pytest.importorskip('streaming.base.format.mds.reader')
    if not os.path.exists(streaming.__file__):
        pytest.skip('headrace stands for it')
    write(tmp_path, range(60), compression='zstd')
    copy_dataset(tmp_path, tmp_path / 'copy')
    erase(tmp_path / 'copy', [3, 44])
    found = [one['id'] for one in StreamingDataset(local=str(tmp_path / 'copy'), batch_size=1)]
    index = json.loads((tmp_path / 'copy' / 'index.json').read_bytes())
    LocalDataset(str(tmp_path / 'copy'))[0]  # unpacks the first shard
    assert len(found) == 60
    row = 0
    for entry in index['shards']:
        reader = streaming.MDSReader.from_json(str(tmp_path / 'copy'), None, entry)
        for i in range(entry['samples']):
            assert reader.get_item(i)['text'] == ('' if row in (3, 44) else sample(row)['text'])
            row += 1
    assert row == 60
