"""Shards of more bytes than wait at one time hold what a plain concatenation of the samples' bytes holds."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headrace.format import MDSEncoder, mds_encode
from headrace.format.shard_memory import BLOCK, WAITING, BlockPool, ShardMemory

ROWS = 900


def text(number: int) -> str:
    size = 300_000 if number == 400 else 1_200_000 if number == 410 else number * 7 % 500
    return chr(97 + number % 26) * size


def values(encoding: str, number: int) -> Any:
    if encoding == 'str':
        return text(number)
    if encoding == 'bytes':
        return text(number).encode()
    if encoding.startswith('ndarray'):
        return np.full(150, number, np.int32)
    return number


def encoded(columns: dict[str, str], sample: dict[str, Any]) -> bytes:
    """The bytes of a sample, by the format's definition."""
    parts = [(columns[name], mds_encode(columns[name], sample[name])) for name in sorted(columns)]
    sizes = [len(data) for encoding, data in parts if encoding in ('str', 'bytes')]
    return struct.pack(f'<{len(sizes)}I', *sizes) + b''.join(data for _, data in parts)


COLUMNS = [
    {'t': 'str'},
    {'a': 'int', 't': 'str'},
    {'t': 'str', 'z': 'uint16'},
    {'a': 'int', 'b': 'int32', 't': 'str', 'z': 'uint16'},
    {'t': 'str', 'u': 'str', 'z': 'int'},
    {'a': 'int', 't': 'bytes', 'z': 'uint16'},
    {'a': 'int', 'n': 'ndarray:int32:150'},
]


@pytest.mark.parametrize('size_limit', [None, 250_000])
@pytest.mark.parametrize('way', ['write', 'batches', 'both'])
@pytest.mark.parametrize(
    ('columns', 'kind'),
    [
        (columns, kind)
        for columns in COLUMNS
        for kind in ['ascii', *(['umlauts', 'a few umlauts'] if 'str' in columns.values() else [])]
    ],
    ids=lambda value: value if isinstance(value, str) else ','.join(value.values()),
)
def test_shards_hold_their_samples(columns: dict[str, str], kind: str, way: str, size_limit: int | None) -> None:
    data = {name: [values(encoding, number) for number in range(ROWS)] for name, encoding in columns.items()}
    for name, encoding in columns.items():
        if encoding == 'str' and kind != 'ascii':
            data[name] = [
                value + 'ü' if kind == 'umlauts' or i % 99 == 7 else value for i, value in enumerate(data[name])
            ]
        if encoding.startswith('ndarray'):
            data[name] = np.stack(data[name])
    samples = [dict(zip(columns, row, strict=True)) for row in zip(*data.values(), strict=True)]

    encoder = MDSEncoder(columns, size_limit=size_limit)
    shards = []
    for begin in range(0, ROWS, 300):
        if way == 'write' or (way == 'both' and begin == 300):
            for sample in samples[begin : begin + 300]:
                shards += encoder.add(sample)
        else:
            shards += encoder.add_batch({name: column[begin : begin + 300] for name, column in data.items()})
    shards += encoder.finish()

    found = []
    for shard in shards:
        content = shard.files[0][1]
        count = struct.unpack_from('<I', content)[0]
        offsets = struct.unpack_from(f'<{count + 1}I', content, 4)
        assert offsets[-1] == len(content)
        assert size_limit is None or len(content) <= size_limit or count == 1
        found += [content[a:b] for a, b in pairwise(offsets)]
    assert found == [encoded(columns, sample) for sample in samples]


def test_bytes_of_every_size_in_order() -> None:
    """Blocks end within bytes. Large ones are not copied."""
    memory, given = ShardMemory(BlockPool()), []
    large = b'l' * (3 << 20)
    for number, size in enumerate([0, 1, WAITING, 15 << 20, 900_000, 5, 17 << 20]):
        given.append(bytes([65 + number]) * size)
        (memory.keep if number % 2 else memory.add)(given[-1])
    memory.add(large)
    memory.add_samples([])
    memory.add_samples([b'x'] * 20)
    pieces = memory.pieces()
    assert b''.join(pieces) == b''.join([*given, large, b'x' * 20])
    assert any(piece is large for piece in pieces)


def test_shards_keep_their_bytes_while_later_ones_are_collected() -> None:
    encoder = MDSEncoder({'x': 'bytes'}, size_limit=3 << 20)
    waiting = [shard for n in range(60) if (shard := encoder.collect({'x': bytes([n]) * (1 << 18)})) is not None]
    first = waiting.pop(0).pack_pieces()
    contents = [b''.join(first.files[0][1])]
    del first
    waiting += [shard for n in range(60, 90) if (shard := encoder.collect({'x': bytes([n]) * (1 << 18)})) is not None]
    contents += [dict(shard.pack().files)[f'shard.{shard.number:05}.mds'] for shard in waiting]
    sizes = [shard.samples for shard in waiting]
    assert len(set(sizes)) == 1
    for number, content in enumerate(contents):
        values = content[-(1 << 18) * sizes[0] :] if sizes[0] else b''
        assert values[-1] == (number + 1) * sizes[0] - 1
        assert len(content) > (1 << 18) * sizes[0]


def test_a_batch_is_copied_before_its_array_changes() -> None:
    encoder = MDSEncoder({'x': 'ndarray:int64:1000'}, size_limit=None)
    rows = np.arange(100_000).reshape(100, 1000)
    given = rows.copy()
    assert encoder.collect_batch({'x': rows}) == []
    rows[:] = -1
    (shard,) = encoder.finish()
    assert shard.files[0][1].endswith(given.tobytes())


def test_a_block_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    pool = BlockPool()
    one, other = pool.take(), pool.take()
    assert len(one) == len(other) == BLOCK
    address = np.frombuffer(one, np.uint8).ctypes.data
    part = one[1000:2000][5:]
    part[:] = b'7' * 995
    del one
    assert np.frombuffer(pool.take(), np.uint8).ctypes.data != address
    assert bytes(part) == b'7' * 995
    del part
    assert np.frombuffer(pool.take(), np.uint8).ctypes.data == address
