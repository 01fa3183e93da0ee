"""MDS shards against a slow, obvious reader and writer; damage; what readers return."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, ShardError
from headrace.format import (
    MDSEncoder,
    ShardInfo,
    ShardReader,
    dump_index,
    mds_decode,
    mds_encode,
    open_shard,
    parse_index,
)
from headrace.format.encodings.registry import get_mds_encoded_size
from headrace.format.mds import Layout
from headrace.format.mds_encoder import compile_encoder
from headrace.format.shards import Schema
from tests.support.formats.format_golden import neutral
from tests.support.suite.example_counts import scaled

VALUES: dict[str, st.SearchStrategy[Any]] = {
    'int': st.integers(-(2**63), 2**63 - 1),
    'str': st.text(max_size=20),
    'bytes': st.binary(max_size=20),
    'uint8': st.integers(0, 255).map(np.uint8),
    'float32': st.floats(width=32).map(np.float32),
    'int64': st.integers(-5, 5).map(np.int64),
    'json': st.lists(st.integers() | st.text(), max_size=3),
    'ndarray': st.lists(st.integers(0, 9), min_size=1, max_size=5).map(lambda x: np.array(x, 'i2')),
    'ndarray:uint16': st.lists(st.integers(0, 9), min_size=1, max_size=300).map(lambda x: np.array(x, 'u2')),
    'ndarray:float64:3': st.lists(st.floats(), min_size=3, max_size=3).map(np.array),
    'ndarray:int16:2,2': st.lists(st.integers(0, 9), min_size=4, max_size=4).map(
        lambda x: np.array(x, 'i2').reshape(2, 2)
    ),
    'str_int': st.integers(),
}


@st.composite
def datasets(draw: Any, min_size: int = 0) -> tuple[dict[str, str], list[Any]]:
    names = draw(st.lists(st.text(max_size=3), unique=True, max_size=5))
    columns = {name: draw(st.sampled_from(list(VALUES))) for name in names}
    samples = draw(st.lists(st.fixed_dictionaries({n: VALUES[e] for n, e in columns.items()}), min_size=min_size))
    return columns, samples


def slow_shard(columns: dict[str, str], samples: list[dict[str, Any]], config: dict[str, Any]) -> bytes:
    """A shard, written as FORMAT_SPEC.md describes it."""
    names = sorted(columns)
    rows = []
    for sample in samples:
        values = [mds_encode(columns[name], sample[name]) for name in names]
        sizes = [len(v) for n, v in zip(names, values, strict=True) if get_mds_encoded_size(columns[n]) is None]
        rows.append(struct.pack(f'<{len(sizes)}I', *sizes) + b''.join(values))
    text = json.dumps(config, sort_keys=True).encode()
    begin = 4 + 4 * (len(rows) + 1) + len(text)
    offsets = [begin + sum(map(len, rows[:i])) for i in range(len(rows) + 1)]
    return struct.pack(f'<{len(rows) + 2}I', len(rows), *offsets) + text + b''.join(rows)


def slow_sample(data: bytes, columns: dict[str, str], i: int) -> dict[str, Any]:
    begin, end = struct.unpack_from('<II', data, 4 + 4 * i)
    names = sorted(columns)
    variable = [n for n in names if get_mds_encoded_size(columns[n]) is None]
    sizes = dict(zip(variable, struct.unpack_from(f'<{len(variable)}I', data, begin), strict=True))
    at = begin + 4 * len(variable)
    sample = {}
    for name in names:
        size = sizes.get(name, get_mds_encoded_size(columns[name]))
        sample[name] = mds_decode(columns[name], data[at : at + size])
        at += size
    assert at == end
    return sample


def encode(columns: dict[str, str], samples: list[dict[str, Any]], **options: Any) -> list[Any]:
    encoder = MDSEncoder(columns, **options)
    return [shard for sample in samples for shard in encoder.add(sample)] + encoder.finish()


def one_shard(columns: dict[str, str], samples: list[dict[str, Any]]) -> tuple[ShardInfo, bytes]:
    (shard,) = encode(columns, samples, size_limit=None)
    (info,) = parse_index(dump_index([shard.info]), source='index')
    return info, shard.files[0][1]


def forms(sample: dict[str, Any]) -> Any:
    return {name: neutral(v) for name, v in sample.items()}


def batch_row(columns: dict[str, str], batch: Any, row: int) -> Any:
    values = {name: column[row] for name, column in batch.columns.items()}
    return forms({name: int(v) if columns[name] == 'int' else v for name, v in values.items()})


@settings(max_examples=scaled(150))
@given(datasets(), st.none() | st.integers(1, 2000))
def test_shards_are_what_the_format_says(dataset: Any, size_limit: int | None) -> None:
    columns, samples = dataset
    encoder = MDSEncoder(columns, size_limit=size_limit)
    done = encode(columns, samples, size_limit=size_limit)
    rest = list(samples)
    for number, shard in enumerate(done):
        mine, rest = rest[: shard.info.samples], rest[shard.info.samples :]
        ((name, data),) = shard.files
        assert name == f'shard.{number:05}.mds' == shard.info.files[0].raw.basename
        assert data == slow_shard(columns, mine, encoder.get_config())
        assert shard.info.files[0].raw.bytes == len(data)
        if size_limit is not None:
            assert len(data) <= size_limit or len(mine) == 1
            if rest:  # the next sample would not have fitted
                assert len(slow_shard(columns, [*mine, rest[0]], encoder.get_config())) > size_limit
    assert not rest


def gathers(reader: ShardReader) -> tuple[Callable[..., None], Callable[..., None]]:
    """Both ways to gather rows, of numpy arrays."""

    def few(rows: Any, out_rows: Any, batch: Any) -> None:
        aside = [0, *rows.tolist()], [0, *out_rows.tolist()]
        reader.gather_few(*aside, range(1, len(rows) + 1), batch)

    return reader.gather, few


@settings(max_examples=scaled(200))
@given(datasets(min_size=1), st.data())
def test_samples_and_batches_are_what_was_written(dataset: Any, data: st.DataObject) -> None:
    columns, samples = dataset
    info, shard = one_shard(columns, samples)
    wanted = [forms(slow_sample(shard, columns, i)) for i in range(len(samples))]
    rows = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=12))
    extra = data.draw(st.integers(0, 3))
    out_rows = data.draw(st.permutations(range(len(rows) + extra)))[: len(rows)]
    for buffer in (memoryview(shard), memoryview(bytearray(b'x' + shard))[1:]):
        reader = open_shard(info, [buffer], source='here')
        assert [forms(reader.sample(i)) for i in range(reader.num_samples)] == wanted
        some = {name: columns[name] for name in columns if data.draw(st.booleans())}
        for gather in gathers(reader):
            batch = info.schema.allocate(len(rows) + extra)
            gather(np.array(rows, np.int64), np.array(out_rows, np.int64), batch)
            for row, out in zip(rows, out_rows, strict=True):
                assert batch_row(columns, batch, out) == wanted[row]
            part = info.schema.allocate(len(rows) + extra, some)
            gather(np.array(rows, np.int64), np.array(out_rows, np.int64), part)
            assert set(part.columns) == set(some)
            for row, out in zip(rows, out_rows, strict=True):
                assert batch_row(some, part, out) == {name: wanted[row][name] for name in some}


@settings(max_examples=scaled(300))
@given(datasets(min_size=1), st.data())
def test_damaged_shards_are_read_or_refused(dataset: Any, data: st.DataObject) -> None:
    columns, samples = dataset
    info, shard = one_shard(columns, samples)
    damaged = bytearray(shard)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    count = len(samples)
    rows = np.arange(count)
    try:
        reader = open_shard(info, [memoryview(damaged)], source='here')
    except ShardError:
        return
    good = []
    for i in range(count):
        try:
            reader.sample(i)
            good.append(i)
        except ShardError as error:
            assert 'here' in str(error)  # noqa: PT017
    for part in (rows[:1], rows[:4], rows):
        batch = info.schema.allocate(len(part))
        try:
            reader.gather(part, np.arange(len(part)), batch)
        except ShardError:
            assert not set(part.tolist()) <= set(good)
        else:
            assert set(part.tolist()) <= set(good)
            for i in part.tolist():
                assert batch_row(columns, batch, i) == forms(reader.sample(i))


@settings(max_examples=scaled(50))
@given(datasets(min_size=1), st.integers(-200, 200))
def test_a_file_of_another_length_is_refused(dataset: Any, change: int) -> None:
    info, shard = one_shard(*dataset)
    other = shard[:change] if change < 0 else shard + bytes(change)
    if len(other) != len(shard):
        with pytest.raises(ShardError, match='bytes'):
            open_shard(info, [memoryview(other)], source='here')


FIXED = {'id': 'int', 'x': 'float32', 'tokens': 'ndarray:uint16:8'}
VARIABLE = {'id': 'int', 'x': 'float32', 'tokens': 'ndarray:uint16:8', 'text': 'str', 'raw': 'bytes', 'v': 'ndarray'}


def sample(i: int) -> dict[str, Any]:
    tokens = np.arange(i, i + 8, dtype=np.uint16)
    return {'id': i, 'x': i / 2, 'tokens': tokens, 'text': 'é' * i, 'raw': bytes([i]) * i, 'v': tokens[: i % 8 + 1]}


@pytest.mark.parametrize('columns', [FIXED, VARIABLE])
@pytest.mark.parametrize('count', [1, 3, 20])
def test_dtypes_and_ownership_of_a_batch(columns: dict[str, str], count: int) -> None:
    info, data = one_shard(columns, [sample(i) for i in range(30)])
    buffer = bytearray(data)
    reader = open_shard(info, [memoryview(buffer)], source='here')
    batch = info.schema.allocate(count)
    rows = np.arange(count)[::-1].copy()
    reader.gather(rows, np.arange(count), batch)
    one = reader.sample(count)
    buffer[:] = bytes(len(buffer))
    got = batch.columns
    assert (got['id'].dtype, got['x'].dtype, got['tokens'].dtype) == (np.int64, np.float32, np.uint16)
    assert (got['id'].shape, got['tokens'].shape) == ((count,), (count, 8))
    assert all(got[name].flags.writeable and got[name].flags.owndata for name in ('id', 'x', 'tokens'))
    assert got['id'].tolist() == rows.tolist()
    np.testing.assert_array_equal(got['tokens'], rows[:, None] + np.arange(8))
    if 'text' in columns:
        assert got['text'] == ['é' * i for i in rows.tolist()]
        assert got['raw'] == [bytes([i]) * i for i in rows.tolist()]
        assert all(v.flags.writeable for v in got['v'])
    wanted = sample(count)
    assert forms(one) == forms({n: np.float32(wanted[n]) if n == 'x' else wanted[n] for n in sorted(columns)})
    assert one['tokens'].flags.writeable


@pytest.mark.parametrize('columns', [FIXED, VARIABLE])
@pytest.mark.parametrize('row', [-1, 30, -31, 2**40, -(2**40)])
def test_rows_out_of_range(columns: dict[str, str], row: int) -> None:
    info, data = one_shard(columns, [sample(i) for i in range(30)])
    reader = open_shard(info, [memoryview(data)], source='here')
    with pytest.raises(IndexError):
        reader.sample(row)
    for count in (1, 2, 20):
        rows = np.zeros(count, np.int64)
        rows[count // 2] = row
        for gather in gathers(reader):
            with pytest.raises(IndexError):
                gather(rows, np.arange(count), info.schema.allocate(count))


def test_no_rows_and_no_columns() -> None:
    info, data = one_shard({}, [{}] * 10)
    reader = open_shard(info, [memoryview(data)], source='here')
    assert reader.sample(9) == {}
    batch = info.schema.allocate(8)
    reader.gather(np.arange(8), np.arange(8), batch)
    assert batch.columns == {}
    empty = np.array([], np.int64)
    reader.gather(empty, empty, info.schema.allocate(0))
    info, _ = one_shard(FIXED, [sample(1)])
    config = b'{}'
    file = struct.pack('<II', 0, 8 + len(config)) + config
    (packed,) = info.files
    none = replace(info, samples=0, files=(replace(packed, raw=replace(packed.raw, bytes=len(file))),))
    reader = open_shard(none, [memoryview(file)], source='here')
    reader.gather(empty, empty, info.schema.allocate(0))
    with pytest.raises(IndexError):
        reader.gather(np.array([0]), np.array([0]), info.schema.allocate(1))


def damaged(position: int, value: int, columns: dict[str, str] = VARIABLE) -> Any:
    info, data = one_shard(columns, [sample(i) for i in range(12)])
    table = bytearray(data)
    struct.pack_into('<I', table, position, value)
    return info, table


def test_each_rule_of_the_table_has_its_message() -> None:
    info, data = one_shard(VARIABLE, [sample(i) for i in range(12)])
    third = struct.unpack_from('<I', data, 12)[0]
    for position, value, message in [
        (0, 11, 'the index counts 12 samples, but the file counts 11'),
        (4, 0, 'samples begin after the table of offsets'),
        (4 + 4 * 12, len(data) - 1, 'end with the file'),
        (8, third + 1, 'the offsets give sample 1'),
        (8, 70, 'the offsets give sample 0 -'),
        (8, 0xFFFFFFFF, 'at least'),
    ]:
        with pytest.raises(ShardError, match=message):
            open_shard(info, [memoryview(damaged(position, value)[1])], source='here')
    second = struct.unpack_from('<I', one_shard(FIXED, [sample(i) for i in range(12)])[1], 8)[0]
    info, shard = damaged(8, second + 1, FIXED)
    with pytest.raises(
        ShardError, match='a sample of these columns has exactly 28 bytes, but the offsets give sample 0'
    ):
        open_shard(info, [memoryview(shard)], source='here')


@pytest.mark.parametrize('size', [0, 0xFFFFFFF0, 2**31, 5])
def test_wrong_sizes_inside_a_sample_are_found(size: int) -> None:
    _, data = one_shard(VARIABLE, [sample(i) for i in range(12)])
    info, data = damaged(struct.unpack_from('<I', data, 4 + 4 * 7)[0], size)
    reader = open_shard(info, [memoryview(data)], source='here')
    for rows, gather in product(([7], range(12)), gathers(reader)):
        with pytest.raises(ShardError, match='sample 7 has .* bytes'):
            gather(np.array(rows), np.arange(len(rows)), info.schema.allocate(len(rows)))
    assert reader.sample(6)['id'] == 6


def test_a_bad_value_names_sample_and_column() -> None:
    info, data = one_shard({'t': 'str'}, [{'t': 'abcd'}] * 12)
    data = bytearray(data)
    data[-1] = 0xFF
    import mmap

    anonymous = mmap.mmap(-1, len(data))
    anonymous[:] = bytes(data)
    for buffer in (memoryview(data), memoryview(anonymous)):
        reader = open_shard(info, [buffer], source='here')
        for rows, gather in product(([11], range(12)), gathers(reader)):
            with pytest.raises(
                ShardError,
                match="Shard here cannot be read: sample 11, column 't': .* not UTF-8.* Restore the file from a copy",
            ):
                gather(np.array(rows), np.arange(len(rows)), info.schema.allocate(len(rows)))
        reader.gather(np.arange(11), np.arange(11), info.schema.allocate(11))


def test_readers_do_not_keep_their_map_alive() -> None:
    import mmap

    info, data = one_shard(VARIABLE, [sample(i) for i in range(12)])
    anonymous = mmap.mmap(-1, len(data))
    anonymous[:] = data
    view = memoryview(anonymous)
    reader = open_shard(info, [view], source='here')
    batch = info.schema.allocate(12)
    reader.gather(np.arange(12), np.arange(12), batch)
    one = reader.sample(3)
    del reader
    view.release()
    anonymous.close()
    assert one['id'] == 3
    assert batch.columns['text'][3] == 'ééé'


def test_threads_may_share_a_reader() -> None:
    info, data = one_shard(VARIABLE, [sample(i) for i in range(30)])
    reader = open_shard(info, [memoryview(data)], source='here')
    results: list[Any] = []

    def read() -> None:
        batch = info.schema.allocate(30)
        for _ in range(20):
            reader.gather(np.arange(30), np.arange(30), batch)
        results.append(batch.columns['text'])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [['é' * i for i in range(30)]] * 4


def test_the_layout_is_worked_out_once_for_all_shards_of_a_schema() -> None:
    shards = encode(VARIABLE, [sample(i) for i in range(30)], size_limit=1000)
    infos = parse_index(dump_index([shard.info for shard in shards]), source='index')
    assert len(infos) > 3
    for info, shard in zip(infos, shards, strict=True):
        open_shard(info, [memoryview(shard.files[0][1])], source='here').sample(0)
    assert len({id(info.schema.layout) for info in infos}) == 1


@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_as_a_shard(data: bytes, samples: int) -> None:
    info, _ = one_shard(VARIABLE, [sample(1)])
    (file,) = info.files
    info = replace(info, samples=samples, files=(replace(file, raw=replace(file.raw, bytes=len(data))),))
    with contextlib.suppress(HeadraceError):
        open_shard(info, [memoryview(data)], source='here')


@pytest.mark.parametrize('kind', [int, bool, float, np.bool_, np.int64, np.uint8, np.float16, np.float64])
def test_numbers_of_python_and_numpy_in_a_column_of_floats_take_the_fast_way(kind: type) -> None:
    encode = compile_encoder(Layout(Schema('mds', ('x',), ('float32',), (4,))))
    assert encode({'x': kind(1)}) == mds_encode('float32', kind(1))
    assert encode({'x': np.longdouble(1)}) is None
