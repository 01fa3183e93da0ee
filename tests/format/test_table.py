"""A table of shards is the sequence of shards that the JSON says, however it was read."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.format import JoinedShards, ShardTable, index, parse_index
from tests.support.formats.indexes import dumped, entries, layouts, numbered, outcome, parsed
from tests.support.suite.example_counts import scaled


@settings(max_examples=scaled(200))
@given(entries(), layouts(), st.booleans())
def test_a_table_is_what_the_json_says(shards: list[dict[str, Any]], layout: dict[str, Any], quick: bool) -> None:
    try:
        data = dumped(shards, **layout)
    except UnicodeEncodeError:
        assume(False)
        raise
    table = parsed(data, fast_path=quick)
    assert [shard.entry() for shard in table] == shards
    assert [table[i].entry() for i in range(-len(shards), 0)] == shards
    assert table.samples.tolist() == [shard['samples'] for shard in shards]
    assert table.schemas == list(dict.fromkeys(shard.schema for shard in table))
    copied = pickle.loads(pickle.dumps(table))
    assert copied == table == list(table)
    for number, shard in enumerate(table):
        for file in shard.files:
            assert copied.find(file.raw.basename) == number
            assert file.zip is None or table.find(file.zip.basename) == number
    assert table.find('absent') is None


@settings(max_examples=scaled(200))
@given(entries(min_size=3), st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_damaged_index_is_read_or_refused_alike(shards: list[dict[str, Any]], random: Any, times: int) -> None:
    data = bytearray(dumped(shards))
    for _ in range(times):
        at, end = sorted(random.choices(range(len(data)), k=2))
        if random.random() < 0.5:
            data[at] = random.choice(b'0123456789-."\\{}[],:/ aeu\x00\xff')
        elif random.random() < 0.5:
            data[at : at + 1] = data[at : min(at + 9, end)]
        else:
            data[at:end] = data[at:end].replace(b'"bytes"', b'"samples"', 1)
    assert outcome(bytes(data), fast_path=True) == outcome(bytes(data), fast_path=False)


def test_keys_that_are_there_twice_count_the_last_time() -> None:
    text = dumped(numbered(9)).decode()
    for twice in (
        '"samples": 7, "samples"',
        '"samples": [{"x": "y"}], "samples"',
        '"zip_data": {"bytes": 3}, "samples"',
    ):
        data = text.replace('"samples"', twice).encode()
        assert outcome(data, fast_path=True) == outcome(data, fast_path=False) == numbered(9)
    data = text.replace('"shards"', '"shards": [], "shards"').encode()
    assert outcome(data, fast_path=True) == numbered(9)


def test_most_shards_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [shard | {'size_limit': 1 + i % 3} for i, shard in enumerate(numbered(600))]
    for shards, parses in ((numbered(600), 1), (mixed, 3)):
        calls: list[int] = []

        def counted(text: str, at: int, calls: list[int] = calls) -> Any:
            calls += [at] if text[at] == '{' else []
            return json.JSONDecoder().raw_decode(text, at)

        monkeypatch.setattr(index, 'decode', counted)
        assert outcome(dumped(shards), fast_path=True) == shards
        assert len(calls) == parses


def test_an_index_of_shards_that_all_differ_is_read() -> None:
    shards = [shard | {'size_limit': 1 + i} for i, shard in enumerate(numbered(50))]
    assert outcome(dumped(shards), fast_path=True) == shards


def test_runs_and_chunks_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [shard | {'size_limit': 1 + (i > 70)} for i, shard in enumerate(numbered(100))]
    for run in (1, 7, 100):
        monkeypatch.setattr(index, '_RUN', run)
        monkeypatch.setattr('headrace.format.table._CHUNK', 11)
        assert outcome(dumped(shards), fast_path=True) == shards


def test_a_large_index_takes_the_fast_path_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, '_parse_each', None)
    assert len(parse_index(dumped(numbered(1000)), source='index')) == 1000


def test_a_table_is_a_sequence() -> None:
    table = parsed(dumped(numbered(10)), fast_path=True)
    assert len(table) == 10
    assert table[-1] == table[9]
    assert table[2:8:3] == [table[2], table[5]]
    assert table == list(table) == table[:]
    assert (table == table[:9], table != table[:9]) == (False, True)
    assert (table == 3, table == tuple(table)) == (False, True)
    assert table[3] in table
    assert table.index(table[3]) == 3
    assert not ShardTable.empty()
    assert ShardTable.empty() == []
    assert ShardTable.empty().find('x') is None
    for wrong in (10, -11):
        with pytest.raises(IndexError):
            table[wrong]


def test_shards_of_several_tables() -> None:
    shards = numbered(10)
    parts = (shards[:4], [], shards[4:])
    tables = [parsed(dumped(part), fast_path=True) for part in parts]
    joined = JoinedShards(tables)
    assert [shard.entry() for shard in joined] == shards
    assert [joined[i].entry() for i in range(-10, 0)] == shards
    assert joined == parsed(dumped(shards), fast_path=False)
    assert joined[2:6] == list(joined)[2:6]
    assert len(JoinedShards([])) == 0
    with pytest.raises(IndexError):
        joined[10]


def test_a_table_travels_as_arrays() -> None:
    table = parsed(dumped(numbered(20_000)), fast_path=True)
    stored = sum(getattr(table, name).nbytes for name in ('samples', 'sizes', 'name_starts', 'names', 'digest_starts'))
    stored += table.kind_of.nbytes + table.digests.nbytes
    assert len(pickle.dumps(table)) < stored + 5000


@pytest.mark.parametrize('name', ['', 'x' * 255, 'x' * 256, 'x' * 70_000, 'ü', '\ud800', 'a\0b', 'shard.00001.md'])
def test_names_of_all_lengths_are_found(name: str) -> None:
    table = parsed(dumped(numbered(3)), fast_path=True)
    assert table.find(name) is None
    if 'x' in name or name == 'ü':
        shards = numbered(3)
        shards[1]['raw_data']['basename'] = name
        for quick in (True, False):
            assert parsed(dumped(shards), fast_path=quick).find(name) == 1


def test_names_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('headrace.format.table._hash_all', lambda names, starts: np.zeros(len(starts) - 1, np.uint64))
    table = parsed(dumped(numbered(9)), fast_path=True)
    assert [table.find(f'shard.{i:05}.mds.zstd') for i in range(9)] == list(range(9))
    assert table.find('absent') is None


WRONG = [
    {'samples': 10**6},
    {'samples': 10**17},
    {'samples': 10**30},
    {'samples': -0.0},
    {'samples': -1},
    {'samples': 1e3},
    {'samples': '10'},
    {'raw_data': {'basename': 'shard.00003.mds', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': '../x', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': '/x', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x/', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': '', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'a/./b', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'a/index.json', 'bytes': 9000, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 1 << 32, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 1 << 63, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 15, 'hashes': {'sha1': 'x'}}},
    {'raw_data': {'basename': 'x', 'bytes': 9000, 'hashes': {'sha1': 1}}},
    {'version': 3},
    {'zip_data': None, 'compression': None, 'column_encodings': ['pkl'], 'column_sizes': [None]},
]


@pytest.mark.parametrize('change', WRONG, ids=str)
@pytest.mark.parametrize('at', [0, 5, 19])
def test_a_wrong_shard_among_many_is_refused_with_the_same_words(change: dict[str, Any], at: int) -> None:
    shards = numbered(20)
    shards[at] |= change
    kind, message = outcome(dumped(shards), fast_path=True)
    assert (kind, message) == outcome(dumped(shards), fast_path=False)
    assert 'Shard' in message


def test_the_first_wrong_shard_is_the_one_that_is_named() -> None:
    shards = numbered(20)
    shards[4]['samples'] = 10**6
    shards[9]['version'] = 3
    shards[15]['samples'] = 10**6
    assert 'Shard 4 ' in outcome(dumped(shards), fast_path=True)[1]
