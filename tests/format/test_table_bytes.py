"""The binary form of a table gives the table again, or nothing: damage and forgery are found."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.format import IndexKey, ShardTable, dump_index, pack_table, read_packed_key, table_bytes, unpack_table
from tests.support.formats.indexes import dumped, entries, numbered, outcome, parsed
from tests.support.suite.example_counts import scaled

KEY = IndexKey(bytes(range(16)), 12345, '0123456789abcdef')


def table_of(shards: list[dict[str, Any]]) -> ShardTable:
    return parsed(dumped(shards), fast_path=False)


def one(number: int, **change: Any) -> dict[str, Any]:
    file = {'basename': f'shard.{number}.mds', 'bytes': 200, 'hashes': {'sha1': f'{number:03x}'}}
    return {
        'column_encodings': ['int'],
        'column_names': ['id'],
        'column_sizes': [8],
        'compression': None,
        'format': 'mds',
        'hashes': ['sha1'],
        'raw_data': file,
        'samples': number,
        'size_limit': None,
        'version': 2,
        'zip_data': None,
    } | change


SHARDS = [one(1), one(2, compression='gz', zip_data={'basename': 'ü', 'bytes': 3, 'hashes': {}}), one(3)]
PACKED = pack_table(table_of(SHARDS), KEY) or b''


def unpacked(data: bytes) -> ShardTable | None:
    """The table, if the file has a key."""
    return None if read_packed_key(data) is None else unpack_table(data)


def forged(data: bytes) -> bytes:
    """With the checksum that makes it look right."""
    return data[:16] + xxhash.xxh3_128_digest(data[32:]) + data[32:]


@settings(max_examples=scaled(150))
@given(entries(min_size=1))
def test_there_and_back(shards: list[dict[str, Any]]) -> None:
    table = table_of(shards)
    assume(table.samples.any())
    data = pack_table(table, KEY)
    if data is None:
        # An index may have a folder called index.json; telling it from a file of that name is not worth the time.
        assert not table.digests.tobytes().isascii() or b'/index.json/' in table.names.tobytes()
        return
    assert read_packed_key(data) == KEY
    again = unpack_table(data)
    assert again == table
    assert pickle.loads(pickle.dumps(again)) == table
    assert pack_table(again, KEY) == data


def test_a_file_that_was_cut_is_none() -> None:
    for end in range(len(PACKED)):
        assert unpacked(PACKED[:end]) is None, end


def test_a_flipped_bit_is_found() -> None:
    for bit in range(8 * len(PACKED)):
        damaged = bytearray(PACKED)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unpacked(bytes(damaged)) is None, bit


def test_other_files_are_none() -> None:
    for data in (b'', b'{}', dumped(SHARDS), bytes(1000), PACKED + b'x', PACKED.replace(b'table 1', b'table 2')):
        assert unpacked(data) is None


def damaged(data: st.DataObject) -> bytes:
    forgery = bytearray(PACKED)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(32, len(PACKED) - 1))
        if data.draw(st.booleans()):
            width = data.draw(st.sampled_from([4, 8]))
            number = data.draw(st.sampled_from([0, 1, 2, 3, 1 << 31, 1 << 63]) | st.integers(0, 1 << 63))
            forgery[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, 'little')
        else:
            forgery[at : at + 1] = data.draw(st.binary(max_size=2) | st.sampled_from([b'/', b'..', b'\\', b'\0', b'"']))
    return forged(bytes(forgery))


@settings(max_examples=scaled(500))
@given(st.data())
def test_a_forged_file_says_no_more_than_an_index_could(data: st.DataObject) -> None:
    table = unpacked(damaged(data))
    if table is not None:
        assert parsed(dump_index(table), fast_path=False) == table


COLUMNS = {name: getattr(table_of(SHARDS), name) for name, _ in table_bytes._COLUMNS}


def with_columns(**change: Any) -> bytes:
    columns = {name: np.asarray(change.get(name, column), column.dtype) for name, column in COLUMNS.items()}
    table = ShardTable(table_of(SHARDS).kinds, **COLUMNS)
    kinds = json.dumps([table[shard].entry() for shard in (0, 1)]).encode()
    lengths = struct.pack('<7Q', *(len(columns[name]) for name, _ in table_bytes._COLUMNS))
    parts = [columns[name].tobytes() for name, _ in table_bytes._COLUMNS]
    return forged(b''.join([PACKED[:64], lengths, *parts, change.get('kinds', kinds)]))


def text(names: bytes) -> Any:
    return np.frombuffer(names, np.uint8)


FORGED: list[dict[str, Any]] = [
    {'names': text(COLUMNS['names'].tobytes().replace(b'shard.1.mds', name)[: len(COLUMNS['names'])])}
    for name in (b'../../../etc', b'/tmp/xx.mds', b'a/./xxx.mds', b'shard.\\.mds', b'shard.\0.mds', b'\xffhard.1.mds')
] + [
    {'names': text(COLUMNS['names'].tobytes().replace(b'shard.1.mds', name))}
    for name in (b'.headrace-x', b'.HEADRACE/x')
] + [
    {'names': text(COLUMNS['names'].tobytes().replace(b'shard.1', b'shard.2'))},
    {'name_starts': COLUMNS['name_starts'] + 1},
    {'name_starts': COLUMNS['name_starts'][::-1]},
    {'name_starts': COLUMNS['name_starts'][:-1]},
    {'name_starts': []},
    {'digest_starts': [0, 9, 3, 9]},
    {'digest_starts': [0, 3, 6, 10]},
    {'digests': text(b'\xff' * 9)},
    {'kind_of': [0, 2, 0]},
    {'kind_of': [0, 0, 0]},
    {'kind_of': [0, 1]},
    {'kind_of': [], 'samples': []},
    {'samples': [-1, 2, 3]},
    {'samples': [1, 2, 30]},
    {'samples': [1, 2, (1 << 63) - 1]},
    {'samples': [0, 0, 0]},
    {'samples': [1, 2]},
    {'sizes': [200, 200, -3, 200]},
    {'sizes': [200, 1 << 32, 3, 200]},
    {'sizes': [200, 200, 200]},
    {'kinds': b''},
    {'kinds': b'{}'},
    {'kinds': b'[1, 2]'},
    {'kinds': b'[' * 100_000},
    {'kinds': json.dumps([one(1), one(2, column_encodings=['pkl'], column_sizes=[None])]).encode()},
    {'kinds': json.dumps([one(1), one(2, column_encodings=['nosuch'])]).encode()},
]  # fmt: skip


def test_columns_are_put_together_as_they_were() -> None:
    assert with_columns() == PACKED


@pytest.mark.parametrize('change', FORGED, ids=[f'{i}-{"-".join(change)}' for i, change in enumerate(FORGED)])
def test_a_forged_column_is_refused(change: dict[str, Any]) -> None:
    data = with_columns(**change)
    assert data != PACKED
    assert read_packed_key(data) == KEY
    assert unpack_table(data) is None


def test_pickles_are_refused_unless_they_are_allowed() -> None:
    shards = [one(1, column_encodings=['pkl'], column_sizes=[None])]
    table = parsed(dumped(shards), fast_path=False, allow_unsafe_types=True)
    data = pack_table(table, KEY) or b''
    assert unpack_table(data) is None
    assert unpack_table(data, allow_unsafe_types=True) == table


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
