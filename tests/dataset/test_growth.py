"""Data to which others were appended since a run began."""

from __future__ import annotations

import itertools
import json
import logging
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from headrace import BAD_SAMPLE, PositionTracker, Stream, StreamingDataLoader, StreamingDataset
from headrace.convert import convert, copy_dataset, merge_index
from headrace.dataset import growth, sequence
from headrace.errors import CacheError, ConfigError, EmptyDatasetError, ResumeError, StreamError
from headrace.format.index import Generation, IndexFile, dump_index
from headrace.format.table import ShardTable
from headrace.order import Topology
from tests.support.datasets.growing import append
from tests.support.stores.shards import disk_use
from tests.support.suite.example_counts import scaled
from tests.support.trainers.growing_run import chain, check
from tests.support.trainers.ranks import run_ranks


def loader(*remotes: Path, cache: Path, **options: Any) -> StreamingDataLoader:
    streams = [Stream(remote=str(remote), local=str(cache / str(n))) for n, remote in enumerate(remotes)]
    options = {'batch_size': 4, 'shuffle': True, **options}
    return StreamingDataLoader(StreamingDataset(streams=streams, **options))


def ids(batches: Any) -> list[list[int]]:
    return [batch['id'].tolist() for batch in batches]


@pytest.mark.parametrize('kind', ['all', 'where', 'costs', 'stratified'])
def test_a_resumed_run_goes_on_with_the_samples_that_it_began_with(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        'all': {},
        'where': {'where': {'id': {'at_least': 7}}},
        'costs': {'cost': 'id', 'bucket': 2},
        'stratified': {'batching_method': 'stratified', 'epoch_size': 90},
    }[kind]
    append(tmp_path / 'a', 0, 43)
    append(tmp_path / 'b', 1000, 25, hashes=['xxh64'])
    remotes = tmp_path / 'a', tmp_path / 'b'
    whole = loader(*remotes, cache=tmp_path / 'cache', **options)
    batches: list[list[int]] = []
    states: list[dict[str, Any]] = []
    for batch in whole:
        batches.append(batch['id'].tolist())
        states.append(whole.state_dict())
    following, at_end = ids(whole), whole.state_dict()
    for first in (43, 70):
        append(tmp_path / 'a', first, 27)
    append(tmp_path / 'b', 2000, 5, hashes=['xxh64'])
    for done in (1, len(batches) - 1):
        resumed = loader(*remotes, cache=tmp_path / 'cache', **options)
        grown = resumed.dataset.size
        resumed.load_state_dict(states[done - 1])
        assert resumed.dataset.size < grown
        assert resumed.dataset.num_shards == whole.dataset.num_shards
        assert ids(resumed) == batches[done:]
        assert ids(resumed) == following
        assert resumed.state_dict() == at_end
    assert 'has 11 shards, of which the run goes on with 5' in caplog.text


def test_samples_are_those_of_the_generation_by_their_ids(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 20)
    append(tmp_path / 'b', 100, 20)
    state = loader(tmp_path / 'a', tmp_path / 'b', cache=tmp_path).state_dict()
    append(tmp_path / 'a', 20, 20)
    grown = loader(tmp_path / 'a', tmp_path / 'b', cache=tmp_path)
    assert grown.dataset[20]['id'] == 20
    assert grown.dataset.samples_per_stream.tolist() == [40, 20]
    grown.load_state_dict(state)
    assert [sample['id'] for sample in grown.dataset[18:22]] == [18, 19, 100, 101]
    assert grown.dataset.samples_per_stream.tolist() == [20, 20]
    explained = grown.dataset.explain(grown.plan(), 0)
    assert explained.files is not None
    assert set(explained.files) <= {'shard.00000.mds', 'shard.00001.mds'}


def test_the_cache_counts_and_evicts_shards_that_are_not_offered(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 100)
    state = loader(tmp_path / 'a', cache=tmp_path / 'cache').state_dict()
    append(tmp_path / 'a', 100, 100)
    size = sum(path.stat().st_size for path in (tmp_path / 'a').iterdir())
    options: dict[str, Any] = {'cache_limit': size // 2 + 3000, 'predownload': 4}
    all_of_it = loader(tmp_path / 'a', cache=tmp_path / 'cache', **options)
    assert len(ids(all_of_it)) == 50
    resumed = loader(tmp_path / 'a', cache=tmp_path / 'cache', **options)
    resumed.load_state_dict(state)
    assert sorted(sum(ids(resumed), [])) == list(range(100))
    assert disk_use(tmp_path / 'cache/0') <= options['cache_limit']


def test_other_data_are_refused_as_ever(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 40)
    state = loader(tmp_path / 'a', cache=tmp_path / 'cache').state_dict()
    shutil.rmtree(tmp_path / 'a')
    append(tmp_path / 'a', 0, 39)
    append(tmp_path / 'a', 39, 40)
    with pytest.raises(ResumeError, match='samples: 40 in the checkpoint, 79 now'):
        loader(tmp_path / 'a', cache=tmp_path / 'cache').load_state_dict(state)


def test_another_mixture_begins_with_all_samples(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 40)
    state = loader(tmp_path / 'a', cache=tmp_path / 'cache').state_dict()
    append(tmp_path / 'a', 40, 40)
    resumed = loader(tmp_path / 'a', cache=tmp_path / 'cache', on_mixture_change='continue')
    resumed.load_state_dict(state)
    assert sorted(sum(ids(resumed), [])) == list(range(80))


@settings(max_examples=scaled(30))
@given(data=st.data(), samples=st.lists(st.integers(1, 12), min_size=1, max_size=4), is_merged=st.booleans())
def test_every_earlier_index_is_found_in_the_present_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, samples: list[int], is_merged: bool
) -> None:
    folder = tmp_path_factory.mktemp('data')
    indexes: list[bytes] = []
    first = 0
    for count in samples:
        append(folder, first, count, size_limit=data.draw(st.sampled_from([100, 280])))
        first += count
        text = (folder / 'index.json').read_bytes()
        if is_merged and data.draw(st.booleans()):  # as `merge_index` writes it
            parsed = IndexFile('', allow_unsafe_types=False)
            parsed.read(folder / 'index.json')
            text = dump_index(parsed.shards, version_first=True)
            (folder / 'index.json').write_bytes(text)
        indexes.append(text)
    for earlier in indexes:
        (folder / 'then.json').write_bytes(earlier)
        then = IndexFile('', allow_unsafe_types=False)
        then.read(folder / 'then.json')
        generation = Generation.of(then.fingerprint)
        assert generation is not None
        now = IndexFile('', allow_unsafe_types=False, wanted=generation)
        now.read(folder / 'index.json')
        assert now.offered == range(len(then.shards))
        assert now.fingerprint == then.fingerprint
        assert now.shards.part(now.offered) == then.shards
        rest = Generation(generation.digest, first=len(then.shards))
        assert Generation.of(f'{rest}, fraction 0 to 0.5 of seed 0') == rest
        changed = json.loads(earlier)
        changed['shards'][0]['samples'] += 1
        assert generation.shards_in(json.dumps(changed).encode()) is None


def test_merged_indexes_grow(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path / f'part{number}', number * 10, 10)
    first, state = tmp_path / 'part0', None
    for count in (2, 3):
        merge_index([str(tmp_path / f'part{number}') for number in range(count)], str(tmp_path))
        made = StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=5))
        if state is not None:
            made.load_state_dict(state)
        state = made.state_dict()
        assert made.dataset.size == 20
    assert first.exists()


@given(data=st.data())
def test_a_part_of_a_table_is_the_table_of_these_shards(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp('data')
    append(folder, 0, 25, hashes=['sha1', 'xxh64'])
    append(folder, 25, 30, hashes=['xxh64'], compression='zstd')
    index = IndexFile('', allow_unsafe_types=False)
    index.read(folder / 'index.json')
    begin = data.draw(st.integers(0, len(index.shards)))
    end = data.draw(st.integers(begin, len(index.shards)))
    part = index.shards.part(range(begin, end))
    assert isinstance(part, ShardTable)
    assert part == index.shards[begin:end]
    assert part.stored_bytes().tolist() == index.shards.stored_bytes()[begin:end].tolist()
    assert len(part.kinds) == len({int(index.shards.kind_of[n]) for n in range(begin, end)})
    for number, shard in enumerate(index.shards):
        found = part.find(shard.files[0].raw.basename)
        assert found == (number - begin if begin <= number < end else None)


def samples_of(made: StreamingDataLoader) -> list[int]:
    return sorted(itertools.chain(*ids(made)))


@pytest.mark.parametrize(
    ('mode', 'workers', 'is_local'),
    [('next_pass', 0, False), ('delta', 1, False), ('delta', 0, True), ('wait', 0, False)],
)
def test_a_pass_takes_what_was_appended_before_it_begins(
    tmp_path: Path, mode: str, workers: int, is_local: bool
) -> None:
    data, rng = tmp_path / 'data', random.Random(3)
    append(data, 0, 30)
    place = {'local': str(data)} if is_local else {'remote': str(data), 'local': str(tmp_path / 'cache')}
    options: dict[str, Any] = {'shuffle': True, 'batch_size': 4, 'on_growth': mode, 'growth_wait': 0.01}
    there = seen = 30
    made = StreamingDataLoader(
        StreamingDataset(**place, **options), num_workers=workers, persistent_workers=workers > 0
    )
    assert samples_of(made) == list(range(30))
    for number in range(5):
        count = rng.choice([0, 3, 14])
        append(data, there, count) if count else None
        there += count
        if number == 2:  # a new process
            state = made.state_dict()
            made = StreamingDataLoader(StreamingDataset(**place, **options), num_workers=workers)
            made.load_state_dict(state)
        if not count and mode == 'wait':
            with pytest.raises(EmptyDatasetError, match='nothing was appended within 0.01 s'):
                next(iter(made))
            continue
        first = seen if count and mode != 'next_pass' else 0
        batches = iter(made)
        found = next(batches)['id'].tolist()
        appended = there
        append(data, there, 5)  # in the middle of the pass, which goes on as it began
        there += 5
        assert len(made) == -(-(appended - first) // 4)
        found += itertools.chain(*ids(batches))
        assert sorted(found) == list(range(first, appended))
        seen = appended
        if mode != 'next_pass':
            assert samples_of(made) == list(range(seen, there))
            seen = there


class _FailingWhileThere(StreamingDataset):
    """Its samples cannot be read while a file is there."""

    obstacle: Path

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        if self.obstacle.exists():
            raise ValueError('on purpose')
        return super().get_item(sample_id, retry)


@pytest.mark.parametrize('mode', ['ignore', 'next_pass', 'delta', 'wait'])
@pytest.mark.parametrize('place', ['open', 'shard', 'worker', 'collate', 'later batch'])
def test_a_pass_that_fails_passes_over_nothing(tmp_path: Path, mode: Any, place: str) -> None:
    data, obstacle = tmp_path / 'data', tmp_path / 'obstacle'
    append(data, 0, 30)
    selection: dict[str, Any] = {'where': {'id': {'below': 1000}}} if place == 'open' else {}
    kind = _FailingWhileThere if place == 'worker' else StreamingDataset
    dataset = kind(
        remote=str(data), local=str(tmp_path / 'cache'), batch_size=4, on_growth=mode, growth_wait=0.01,
        download_retry=0, **selection
    )  # fmt: skip
    if isinstance(dataset, _FailingWhileThere):
        dataset.obstacle = obstacle

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        if place == 'collate' and obstacle.exists():
            raise ValueError('on purpose')
        return default_collate(samples)

    own = collate if place == 'collate' else None
    made = StreamingDataLoader(dataset, num_workers=int(place == 'worker'), collate_fn=own)
    assert samples_of(made) == list(range(30))
    append(data, 30, 30)
    expected = {'ignore': range(30), 'next_pass': range(60)}.get(mode, range(30, 60))
    shards = sorted(data.glob('shard.*.mds'))[-1 if place == 'later batch' else 3 :]
    hides_shards = place in ('open', 'shard', 'later batch') and mode != 'ignore'  # whose shards are all there
    if hides_shards:
        for shard in shards:
            shard.rename(shard.with_suffix('.hidden'))
    obstacle.touch()
    got: list[int] = []
    for _ in range(3):
        if mode == 'ignore' and place not in ('worker', 'collate'):
            break
        with pytest.raises((ValueError, OSError)):
            for batch in made:
                got += batch['id'].tolist()
    obstacle.unlink()
    if hides_shards:
        for shard in shards:
            shard.with_suffix('.hidden').rename(shard)
    assert sorted(got + samples_of(made)) == list(expected)
    append(data, 60, 7)
    assert samples_of(made) == list({'ignore': range(30), 'next_pass': range(67)}.get(mode, range(60, 67)))


@pytest.mark.parametrize('mode', ['next_pass', 'delta', 'wait'])
def test_data_that_are_refused_when_a_pass_begins_leave_the_dataset_as_it_was(tmp_path: Path, mode: Any) -> None:
    data = tmp_path / 'data'

    def index(*parts: str) -> None:
        entries = list[Any]()
        for part in parts:
            for entry in json.loads((data / part / 'index.json').read_text())['shards']:
                entry['raw_data']['basename'] = f'{part}/{entry["raw_data"]["basename"]}'
                entries.append(entry)
        (data / 'index.json').write_text(json.dumps({'version': 2, 'shards': entries}))

    append(data / '0', 0, 30)
    index('0')
    made = loader(data, cache=tmp_path / 'cache', on_growth=mode, on_bad_sample='skip')
    assert samples_of(made) == list(range(30))
    append(data / 'bad', 30, 30, columns={'id': 'int', BAD_SAMPLE: 'int'}, sample=lambda n: {'id': n, BAD_SAMPLE: 0})
    index('0', 'bad')
    state = made.state_dict()
    for _ in range(2):
        with pytest.raises(ConfigError, match=BAD_SAMPLE):
            next(iter(made))
        assert made.state_dict() == state
        assert [sample['id'] for sample in made.dataset[0:3]] == [0, 1, 2]
    append(data / 'good', 30, 25)
    index('0', 'good')
    assert samples_of(made) == list(range(0 if mode == 'next_pass' else 30, 55))


def test_a_rank_whose_store_lags_asks_again_and_then_says_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / 'a', 0, 30)
    shutil.copytree(tmp_path / 'a', tmp_path / 'mirror')
    append(tmp_path / 'a', 30, 10)
    ahead = loader(tmp_path / 'a', cache=tmp_path / 'ahead', on_growth='next_pass')
    behind = loader(tmp_path / 'mirror', cache=tmp_path / 'behind', on_growth='next_pass')
    waited: list[float] = []
    monkeypatch.setattr(growth.time, 'sleep', waited.append)
    seen, wanted = (made.dataset.streams[0].fingerprint for made in (behind, ahead))
    before = behind.state_dict()
    with pytest.raises(StreamError, match=f'Rank 0 sees generation {seen} of stream .* have generation {wanted}, '):
        behind.load_state_dict(ahead.state_dict())
    assert behind.state_dict() == before
    assert 10 < sum(waited) <= 60
    asked = len(waited)

    def catch_up(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == asked + 3:
            append(tmp_path / 'mirror', 30, 10)

    monkeypatch.setattr(growth.time, 'sleep', catch_up)
    behind.load_state_dict(ahead.state_dict())
    assert len(waited) == asked + 3
    assert samples_of(behind) == list(range(40))


def test_several_streams_grow_together(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 30)
    append(tmp_path / 'b', 1000, 11)
    made = loader(tmp_path / 'a', tmp_path / 'b', cache=tmp_path / 'cache', on_growth='next_pass')
    first = ids(made)
    append(tmp_path / 'b', 1011, 5)
    again = ids(made)
    assert sorted(itertools.chain(*first)) == [*range(30), *range(1000, 1011)]
    assert sorted(itertools.chain(*again)) == [*range(30), *range(1000, 1016)]
    state = made.state_dict()
    append(tmp_path / 'a', 30, 1)
    assert samples_of(made) == [*range(31), *range(1000, 1016)]
    resumed = loader(tmp_path / 'a', tmp_path / 'b', cache=tmp_path / 'cache')
    resumed.load_state_dict(state)
    assert samples_of(resumed) == [*range(30), *range(1000, 1016)]


def test_a_checkpoint_after_the_decision_keeps_it(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 30)
    made = loader(tmp_path / 'a', cache=tmp_path / 'cache', on_growth='delta')
    ids(made)
    append(tmp_path / 'a', 30, 10)
    made.dataset.take_growth()
    state = made.state_dict()
    batches = ids(made)
    append(tmp_path / 'a', 40, 10)
    resumed = loader(tmp_path / 'a', cache=tmp_path / 'cache', on_growth='delta')
    resumed.load_state_dict(state)
    assert ids(resumed) == batches
    assert samples_of(resumed) == list(range(40, 50))


@pytest.mark.parametrize('workers', [0, 1])
def test_peek_shows_a_batch_of_the_grown_data(tmp_path: Path, workers: int) -> None:
    append(tmp_path / 'a', 0, 30)
    dataset = StreamingDataset(remote=str(tmp_path / 'a'), local=str(tmp_path / 'c'), batch_size=4, on_growth='delta')
    made = StreamingDataLoader(dataset, num_workers=workers)
    append(tmp_path / 'a', 30, 10)
    for expected in (range(40), range(40, 50)):
        peeked = made.peek()
        append(tmp_path / 'a', expected.stop, 10)
        batches = list(made)
        assert batches[0] is peeked
        assert sorted(itertools.chain(*ids(batches))) == list(expected)


def test_splits_that_count_all_samples_are_refused_in_an_epoch_of_new_ones(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 30)
    for options in ({'fraction': [0, 0.5]}, {'subset': [[0, 20]]}):
        stream: dict[str, Any] = {'local': str(tmp_path / 'a'), 'batch_size': 4, **options}
        StreamingDataset(**stream, on_growth='next_pass')
        for mode in ('delta', 'wait'):
            with pytest.raises(ConfigError, match='`subset` or `fraction` of stream stream_0, which count all'):
                StreamingDataset(**stream, on_growth=mode)


@pytest.mark.parametrize('mode', ['delta', 'wait'])
def test_a_dropped_remainder_is_refused_where_its_samples_would_not_come_again(tmp_path: Path, mode: Any) -> None:
    append(tmp_path / 'a', 0, 30)
    dataset = StreamingDataset(local=str(tmp_path / 'a'), batch_size=4, on_growth=mode)
    with pytest.raises(ConfigError, match="`remainder` 'drop', or `drop_last`, would lose samples"):
        next(iter(StreamingDataLoader(dataset, drop_last=True)))


def test_no_loader_begins_anew_within_a_pass(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 30)
    append(tmp_path / 'b', 0, 60)
    short, long = (
        loader(tmp_path / name, cache=tmp_path / name / 'cache', on_growth=mode)
        for name, mode in (('a', 'next_pass'), ('b', 'ignore'))
    )
    with pytest.raises(ConfigError, match='`on_growth` is set for short'):
        PositionTracker({'short': short, 'long': long})
    PositionTracker({'short': short, 'long': long}, mode='max_size')
    PositionTracker(short)


def test_waiting_ends_when_samples_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path / 'a', 0, 30)
    made = loader(tmp_path / 'a', cache=tmp_path / 'cache', on_growth='wait')
    ids(made)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            append(tmp_path / 'a', 30, 10)

    monkeypatch.setattr(growth.time, 'sleep', wait)
    assert samples_of(made) == list(range(30, 40))
    assert len(waited) == 3


def test_a_run_is_not_stopped_by_another_one_that_finds_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path / 'a', 0, 200)
    old = iter(loader(tmp_path / 'a', cache=tmp_path / 'cache', predownload=4))
    found = next(old)['id'].tolist()
    append(tmp_path / 'a', 200, 50)
    new = loader(tmp_path / 'a', cache=tmp_path / 'cache', on_growth='next_pass')
    assert samples_of(new) == list(range(250))
    assert sorted([*found, *itertools.chain(*ids(old))]) == list(range(200))
    with caplog.at_level(logging.INFO):
        append(tmp_path / 'a', 250, 50)
        assert samples_of(new) == list(range(300))
    assert 'Removed 0 cached files' in caplog.text
    shutil.rmtree(tmp_path / 'a')
    old = iter(loader(tmp_path / 'a', cache=tmp_path / 'cache', predownload=4))
    next(old)
    append(tmp_path / 'a', 1000, 250)
    loader(tmp_path / 'a', cache=tmp_path / 'cache')
    with pytest.raises(CacheError, match='the data have changed'):
        ids(old)


def test_data_that_changed_otherwise_end_the_run(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 30)
    made = loader(tmp_path / 'a', cache=tmp_path / 'cache', on_growth='next_pass')
    ids(made)
    shutil.rmtree(tmp_path / 'a')
    append(tmp_path / 'a', 0, 29)
    with pytest.raises(StreamError, match='no longer begins with the shards that the run has read'):
        ids(made)


@pytest.mark.parametrize(
    ('options', 'reason'),
    [
        ({'shuffle_algo': 'py1e'}, "`shuffle_algo` 'py1e'"),
        ({'on_growth': 'delta', 'epoch_size': 40}, "`epoch_size`.*set `on_growth` to 'next_pass'"),
        ({'on_growth': 'delta', 'batching_method': 'per_stream'}, "`batching_method` 'per_stream'"),
        ({'on_growth': 'wait', 'when_exhausted': 'stop'}, '`when_exhausted`'),
        ({'on_growth': 'delta'}, 'several streams'),
        ({'on_growth': 'wait', 'schedule': [{'at': 0, 'proportions': {'stream_0': 1}}]}, 'a `schedule`'),
        ({'sampling_method': 'fixed', 'epoch_size': 30}, "`sampling_method` 'fixed'"),
        ({'growth_wait': 0}, 'greater than 0'),
        ({'skip': [['2ba', '3ba']]}, 'bounds of `skip` in batches'),
        ({'on_growth': 'always'}, 'must be one of'),
    ],
)
def test_what_is_not_exact_is_refused_by_name(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    append(tmp_path / 'a', 0, 20)
    append(tmp_path / 'b', 0, 20)
    with pytest.raises(ConfigError, match=reason):
        loader(tmp_path / 'a', tmp_path / 'b', cache=tmp_path / 'cache', **{'on_growth': 'next_pass', **options})


def test_weights_other_formats_and_plain_loops_are_refused(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 20)
    (tmp_path / 'b').mkdir()
    (tmp_path / 'b/x.jsonl').write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match='a broken `repeat` of stream stream_0'):
        StreamingDataset(streams=[Stream(local=str(tmp_path / 'a'), repeat=0.5)], on_growth='delta')
    with pytest.raises(ConfigError, match='data without an index.json'):
        StreamingDataset(streams=[Stream(local=str(tmp_path / 'b'))], on_growth='next_pass')
    made = StreamingDataset(streams=[Stream(local=str(tmp_path / 'a'), repeat=2)], batch_size=4, on_growth='next_pass')
    with pytest.raises(ConfigError, match='A plain DataLoader has workers that know nothing'):
        next(iter(made))
    with pytest.raises(ConfigError, match='reads one epoch always'):
        next(iter(StreamingDataLoader(made, fixed_epoch=0)))
    with pytest.raises(ConfigError, match='does not go with decided proportions'):
        StreamingDataLoader(made).set_proportions({'stream_0': 1}, by='me')
    ranks = loader(tmp_path / 'a', cache=tmp_path, on_growth='next_pass', topology=Topology(rank=1, world_size=2))
    with pytest.raises(ConfigError, match='process group'):
        next(iter(ranks))


def test_new_samples_that_a_selection_leaves_out_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    appended = iter([(130, 20), (50, 10), None, (160, 20)])

    def sleep(seconds: float) -> None:
        del seconds
        if (more := next(appended)) is not None:
            append(tmp_path / 'a', *more)

    append(tmp_path / 'a', 0, 30)
    options: dict[str, Any] = {'where': {'id': {'below': 100}}}
    waiting = loader(tmp_path / 'a', cache=tmp_path / 'wait', on_growth='wait', **options)
    delta = loader(tmp_path / 'a', cache=tmp_path / 'delta', on_growth='delta', **options)
    assert samples_of(waiting) == samples_of(delta) == list(range(30))
    append(tmp_path / 'a', 100, 30)
    monkeypatch.setattr(growth.time, 'sleep', sleep)
    with caplog.at_level(logging.INFO):
        assert samples_of(delta) == list(range(30))
    assert 'The new samples are passed over. Of the 30 samples' in caplog.text
    assert samples_of(waiting) == list(range(50, 60))
    assert samples_of(delta) == list(range(50, 60))
    state = delta.state_dict()
    delta = loader(tmp_path / 'a', cache=tmp_path / 'delta', on_growth='delta', **options)
    delta.load_state_dict(state)
    assert samples_of(delta) == [*range(30), *range(50, 60)]
    opener = waiting.dataset._opener
    hasty = replace(opener.options, growth_wait=1e-9)
    monkeypatch.setattr(growth.time, 'sleep', lambda _: setattr(opener, 'options', hasty))
    append(tmp_path / 'a', 160, 20)
    with pytest.raises(EmptyDatasetError, match='nothing was appended within'):
        next(iter(waiting))
    append(tmp_path / 'a', 60, 5)
    assert samples_of(waiting) == list(range(60, 65))


def test_a_rank_that_joins_before_the_first_batch_decides_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each decision is a broadcast, so a rank that takes part in more of them than others waits for ever."""
    append(tmp_path / 'a', 0, 30)
    options: dict[str, Any] = {'on_growth': 'next_pass', 'uneven': 'pad', 'batch_size': None, 'global_batch_size': 4}
    made = [loader(tmp_path / 'a', cache=tmp_path / 'a/cache', **options) for _ in range(2)]
    ids(made[0])
    state = made[0].state_dict()
    first = iter(made[0])
    next(first)
    decided: list[int] = []
    monkeypatch.setattr(growth, 'decided_by_first', lambda decide: (decided.append(1), decide())[1])
    monkeypatch.setattr(sequence, 'has_group', lambda: True)
    made[0].rescale(Topology(rank=0, world_size=2), state)
    joined = made[1]
    joined.load_state_dict(state)
    joined.rescale(Topology(rank=1, world_size=2), state)
    passes, counts, found = [first, iter(joined)], [], []
    for one in passes:
        decided.clear()
        found.append(next(one)['id'].tolist())
        counts.append(len(decided))
    assert counts == [1, 1]
    assert len(set(found[0] + found[1])) == 4


@pytest.mark.parametrize('mode', ['delta', pytest.param('next_pass', marks=pytest.mark.slow)])
def test_ranks_agree_and_a_replay_needs_the_record_alone(tmp_path: Path, mode: str) -> None:
    append(tmp_path / 'data', 0, 40)
    program = Path(sys.modules[chain.__module__].__file__ or '')
    for leg, (world, steps) in enumerate([(2, 17), (3, 31)]):
        run_ranks('torch', world, program, tmp_path, leg, mode, 0, steps, folder=tmp_path)
    assert check(tmp_path, mode)['generations'] > 2


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['next_pass', 'delta', 'wait'])
def test_killed_trainings_of_growing_data_lose_and_repeat_nothing(tmp_path: Path, mode: str) -> None:
    chain(tmp_path, mode, kills=2, seed=5, most_ranks=2, seconds=(10, 15))
    check(tmp_path, mode)


@pytest.mark.slow
def test_mosaicml_streaming_reads_data_that_grow(tmp_path: Path) -> None:
    streaming = pytest.importorskip('streaming')
    append(tmp_path, 0, 30)
    made = StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4, on_growth='delta'))
    ids(made)
    append(tmp_path, 30, 20)
    assert samples_of(made) == list(range(30, 50))
    theirs = streaming.LocalDataset(str(tmp_path))
    assert sorted(int(theirs[i]['id']) for i in range(len(theirs))) == list(range(50))


def grow_in_every_way(folder: Path) -> None:
    source = folder / 'source'
    append(source, 0, 20, hashes=['xxh64'])
    copy_dataset(str(source), str(folder / 'copied'))
    convert(rows(20), str(folder / 'converted'), columns={'id': 'int'}, size_limit=280, progress_bar=False)
    (folder / 'merged').mkdir()
    for part in range(4):
        append(folder / 'merged' / str(part), 0, 12)
    merge_index([str(folder / 'merged/0')], str(folder / 'merged'))
    for turn in range(1, 4):
        append(source, 20 * turn, 20, hashes=['xxh64'])
        copy_dataset(str(source), str(folder / 'copied'))
        convert(
            rows(20), str(folder / 'converted'), columns={'id': 'int'}, size_limit=280, append=True, progress_bar=False
        )
        merge_index([str(folder / 'merged' / str(part)) for part in range(turn + 1)], str(folder / 'merged'))


def rows(count: int) -> list[dict[str, int]]:
    return [{'id': number} for number in range(count)]


def test_all_that_appends_shows_the_old_index_or_the_new_one(tmp_path: Path) -> None:
    names = ['source', 'copied', 'converted', 'merged']
    earlier: dict[str, IndexFile] = {}
    counts: dict[str, set[int]] = {name: set() for name in names}
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(grow_in_every_way, tmp_path)
        is_last = False
        while not is_last:
            is_last = writing.done()
            for name in names:
                if not (tmp_path / name / 'index.json').exists():
                    continue
                index = IndexFile(name, allow_unsafe_types=False)
                index.read(tmp_path / name / 'index.json')
                for shard in index.shards:
                    file = shard.files[0].raw
                    assert (tmp_path / name / file.basename).stat().st_size == file.bytes
                before = earlier.get(name, index).stored
                assert before is not None
                assert before.is_in(tmp_path / name / 'index.json')
                earlier[name] = index
                counts[name].add(len(index.shards))
        writing.result()
    assert {name: max(found) for name, found in counts.items()} == {
        'source': 12, 'copied': 12, 'converted': 12, 'merged': 8
    }  # fmt: skip


def test_a_copy_of_data_that_have_grown_gets_what_is_missing(tmp_path: Path) -> None:
    append(tmp_path / 'a', 0, 40, hashes=['xxh64'])
    assert copy_dataset(str(tmp_path / 'a'), str(tmp_path / 'b')).files == 6
    append(tmp_path / 'a', 40, 30, hashes=['xxh64'])
    (tmp_path / 'b/shard.00005.mds').write_bytes(b'of another origin')
    report = copy_dataset(str(tmp_path / 'a'), str(tmp_path / 'b'))
    assert (report.files, report.copied) == (10, 5)
    assert sorted(path.name for path in (tmp_path / 'b').iterdir()) == sorted(
        path.name for path in (tmp_path / 'a').iterdir()
    )
    copied = StreamingDataset(local=str(tmp_path / 'b'))
    assert [sample['id'] for sample in copied[:]] == list(range(70))
    shutil.rmtree(tmp_path / 'a')
    append(tmp_path / 'a', 0, 69, hashes=['xxh64'])
    with pytest.raises(FileExistsError, match='of another dataset'):
        copy_dataset(str(tmp_path / 'a'), str(tmp_path / 'b'))
