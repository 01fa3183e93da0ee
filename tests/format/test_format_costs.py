"""Costs in the heads of shards: as their columns have them, also for other readers, and never damaged ones."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MDSWriter, Stream, StreamingDataset
from headrace.cli import main
from headrace.convert import copy_dataset, merge_index, reshard, tokenize
from headrace.convert.parts import PartedDataset, WrittenPart
from headrace.errors import ConfigError, StreamError
from headrace.format import EncodedShard, MDSEncoder, ShardInfo, decompress
from headrace.format.compression import unpack_head
from headrace.format.costs import TAIL, costs_block, costs_of_values, stored_costs

COLUMNS = {'text': 'str', 'tokens': 'ndarray:int32', 'data': 'bytes', 'size': 'uint16', 'fixed': 'ndarray:int8:3'}
samples = st.fixed_dictionaries(
    {
        'text': st.text('aä', max_size=9),
        'tokens': st.integers(1, 400).map(lambda size: np.zeros(size, np.int32)),
        'data': st.binary(max_size=9),
        'size': st.integers(0, 65535),
        'fixed': st.just(np.ones(3, np.int8)),
    }
)


def cost_of(sample: dict[str, Any], column: str) -> int:
    return sample['size'] if column == 'size' else len(sample[column])


def head_of(shard: EncodedShard) -> Any:
    data = shard.files[0][1]
    raw = data if shard.info.compression is None else decompress(shard.info.compression, data)
    return lambda size: raw[:size]


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(samples, min_size=1, max_size=20), column=st.sampled_from(list(COLUMNS)), data=st.data())
def test_shards_hold_the_costs_of_their_samples(rows: list[dict[str, Any]], column: str, data: st.DataObject) -> None:
    compression = data.draw(st.sampled_from([None, 'zstd', 'gz', 'bz2']))
    settings: dict[str, Any] = {'compression': compression, 'size_limit': 3000, 'cost': column}
    one, other = MDSEncoder(COLUMNS, **settings), MDSEncoder(COLUMNS, **settings)
    shards = [*(shard for row in rows for shard in one.add(row)), *one.finish()]
    batch = {name: [row[name] for row in rows] for name in COLUMNS}
    assert [shard.files for shard in (*other.add_batch(batch), *other.finish())] == [shard.files for shard in shards]
    found = [stored_costs(shard.info, head_of(shard)) for shard in shards]
    assert {one[0] for one in found if one is not None} == {column}
    costs = [cost for one in found if one is not None for cost in one[1].tolist()]
    assert costs == [cost_of(row, column) for row in rows]
    for shard in shards:
        assert shard.info.samples == 1 or shard.info.files[0].raw.bytes <= 3000
        raw = head_of(shard)(1 << 20)
        if compression is not None:
            assert unpack_head(compression, shard.files[0][1], 50) == raw[:50]


def shard_of(rows: int, **settings: Any) -> tuple[ShardInfo, bytes]:
    encoder = MDSEncoder({'text': 'str'}, **settings)
    encoder.add_batch({'text': ['x' * number for number in range(rows)]})
    (shard,) = encoder.finish()
    return shard.info, shard.files[0][1]


def test_damaged_costs_are_none() -> None:
    info, data = shard_of(20, cost='text')
    begin = int.from_bytes(data[4:8], 'little')
    for at in [4, 5, *range(8 + 4 * 20, begin)]:
        damaged = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        assert stored_costs(info, lambda size, damaged=damaged: damaged[:size]) is None
    for length in range(0, begin, 7):
        assert stored_costs(info, lambda size, length=length: data[: min(size, length)]) is None
    table = data[: 8 + 4 * 20]
    for text in (b'', b'{}', b'[]', b'[' * 100_000, b'\xff'):  # with a right checksum
        at = (8 + 4 * 20 + len(text) + 4 * 20 + TAIL).to_bytes(4, 'little')
        crafted = data[:4] + at + table[8:] + text + costs_block(np.arange(20), text) + bytes(100)
        assert stored_costs(info, lambda size, crafted=crafted: crafted[:size]) is None
        assert (
            stored_costs(info, lambda size, crafted=crafted: crafted[:4] + bytes([40, 0, 0, 0]) + crafted[8:size])
            is None
        )
    plain, data = shard_of(20)
    assert stored_costs(plain, lambda size: data[:size]) is None


def test_a_long_configuration_takes_a_second_request() -> None:
    columns = {f'column {number:0100}': 'int' for number in range(100)}
    encoder = MDSEncoder({**columns, 'text': 'str'}, cost='text')
    encoder.add({**dict.fromkeys(columns, 1), 'text': 'xyz'})
    (shard,) = encoder.finish()
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return head_of(shard)(size)

    found = stored_costs(shard.info, read)
    assert found is not None
    assert found[1].tolist() == [3]
    assert len(asked) == 2


@pytest.mark.parametrize('cost', ['nothing', 'half', 'code', 'image'])
def test_wrong_columns_are_refused_before_the_first_sample(tmp_path: Path, cost: str) -> None:
    columns = {'text': 'str', 'half': 'float16', 'code': 'json', 'image': 'jpeg'}
    with pytest.raises(ConfigError, match=f'`cost` of a writer names a column.*is {cost!r}'):
        MDSWriter(out=str(tmp_path), columns=columns, cost=cost)


@pytest.mark.parametrize(
    'bad', [-1, np.int64(-1), 1 << 32, np.int64(-1).tobytes()], ids=['', 'numpy', 'large', 'bytes']
)
def test_numbers_that_are_no_costs_are_refused_with_their_sample_only(tmp_path: Path, bad: Any) -> None:
    with MDSWriter(out=str(tmp_path), columns={'n': 'int64', 'text': 'str'}, cost='n') as writer:
        writer.write({'n': 7, 'text': ''})
        with pytest.raises(ValueError, match=r"Sample 1, column 'n': A cost is a number from 0 to 2\^32 - 1, but got"):
            writer.write({'n': bad, 'text': ''})
        for values in ([1, 2, bad], np.array([1, 2, -1])):
            with pytest.raises(ValueError, match=r"Sample \d, column 'n': A cost is a number .*, but got"):
                writer.write_batch({'n': values, 'text': ['', '', '']})
        writer.write_batch({'n': np.array([1, 2, 3]), 'text': ['', '', '']})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1, cost='n', bucket=1)
    costs = dataset.pool.streams[0].costs
    assert costs is not None
    assert costs.values.tolist() == [7, 1, 2, 3]


def test_a_conversion_leaves_out_rows_without_a_cost(tmp_path: Path) -> None:
    (tmp_path / 'a.jsonl').write_text('{"n": 3}\n{"n": -1}\n{"n": 5}\n')
    arguments = [str(tmp_path / 'a.jsonl'), str(tmp_path / 'data'), '--cost', 'n', '--on-error', 'skip']
    assert main(['convert', *arguments]) == 0
    assert [sample['n'] for sample in StreamingDataset(local=str(tmp_path / 'data'), batch_size=1)] == [3, 5]


def write(folder: Path, first: int, count: int, cost: str | None = 'text', **more: Any) -> Path:
    with MDSWriter(out=str(folder), columns={'n': 'int', 'text': 'str'}, size_limit=800, cost=cost, **more) as out:
        for number in range(first, first + count):
            out.write({'n': number, 'text': 'x' * (number % 37)})
    return folder


def costs_and_fetched(remote: Path, cache: Path, cost: str = 'text') -> tuple[list[int], int]:
    """The costs of a dataset, and how many of its shards were fetched for them."""
    dataset = StreamingDataset(remote=str(remote), local=str(cache), batch_size=2, cost=cost, bucket=2)
    ((stream,), fetched) = dataset.pool.streams, len([*cache.rglob('*.mds')])
    assert stream.costs is not None
    assert len({sample['n'] for sample in dataset}) == dataset.size
    return stream.costs.values.tolist(), fetched


@pytest.mark.parametrize('compression', [None, 'zstd', 'br', 'bz2', 'gz'])
def test_a_dataset_starts_without_its_shards(tmp_path: Path, compression: str | None) -> None:
    write(tmp_path / 'data', 0, 100, compression=compression)
    lengths = [number % 37 for number in range(100)]
    assert costs_and_fetched(tmp_path / 'data', tmp_path / 'cache') == (lengths, 0)


def test_costs_of_another_column_are_not_taken(tmp_path: Path) -> None:
    write(tmp_path / 'data', 0, 100)
    costs, fetched = costs_and_fetched(tmp_path / 'data', tmp_path / 'cache', cost='n')
    assert costs == list(range(100))
    assert fetched > 3


def test_shards_before_appended_ones_may_have_none(tmp_path: Path) -> None:
    write(tmp_path / 'data', 0, 60, cost=None)
    before = len([*(tmp_path / 'data').glob('*.mds')])
    write(tmp_path / 'data', 60, 40, append=True)
    costs, fetched = costs_and_fetched(tmp_path / 'data', tmp_path / 'cache')
    assert costs == [number % 37 for number in range(100)]
    assert fetched == before > 0


def test_a_resumed_writer_keeps_them(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='killed'):  # noqa: SIM117
        with MDSWriter(
            out=str(tmp_path / 'data'), columns={'n': 'int', 'text': 'str'}, size_limit=800, cost='text', resume=True
        ) as out:
            for number in range(70):
                out.write({'n': number, 'text': 'x' * (number % 37)})
            raise RuntimeError('killed')
    with MDSWriter(
        out=str(tmp_path / 'data'), columns={'n': 'int', 'text': 'str'}, size_limit=800, cost='text', resume=True
    ) as out:
        for number in range(out.num_samples, 100):
            out.write({'n': number, 'text': 'x' * (number % 37)})
    lengths = [number % 37 for number in range(100)]
    assert costs_and_fetched(tmp_path / 'data', tmp_path / 'cache') == (lengths, 0)


@pytest.mark.parametrize('compression', [None, 'zstd'])
def test_writers_that_go_on_refuse_another_column(tmp_path: Path, compression: str | None) -> None:
    how: dict[str, Any] = {'columns': {'n': 'int', 'text': 'str'}, 'size_limit': 800, 'compression': compression}
    for folder, cost in (('data', 'text'), ('plain', None)):
        with pytest.raises(RuntimeError, match='killed'):  # noqa: SIM117
            with MDSWriter(out=str(tmp_path / folder), cost=cost, **how, resume=True) as out:
                for number in range(70):
                    out.write({'n': number, 'text': 'x' * (number % 37)})
                raise RuntimeError('killed')
    for folder, cost, which in (
        ('data', 'n', "'text' and 'n'"),
        ('data', None, "'text' and None"),
        ('plain', 'n', "None and 'n'"),
    ):
        with pytest.raises(ConfigError, match=f'continues it, must have the same cost, but they are {which}'):
            MDSWriter(out=str(tmp_path / folder), cost=cost, **how, resume=True)
    for folder, cost in (('data', 'text'), ('plain', None)):
        with MDSWriter(out=str(tmp_path / folder), cost=cost, **how, resume=True) as out:
            assert out.num_samples > 0
    for cost in ('n', None):
        with pytest.raises(ConfigError, match=f"appended, must have the same cost, but they are 'text' and {cost!r}"):
            MDSWriter(out=str(tmp_path / 'data'), cost=cost, **how, append=True)
    for folder, cost in (('data', 'text'), ('plain', None), ('plain', 'n')):
        with MDSWriter(out=str(tmp_path / folder), cost=cost, **how, append=True) as out:
            out.write({'n': 1, 'text': 'x'})


def test_merge_copy_and_reshard_carry_them(tmp_path: Path) -> None:
    lengths = [number % 37 for number in range(100)]
    write(tmp_path / 'parts/a', 0, 50)
    write(tmp_path / 'parts/b', 50, 50)
    merge_index(str(tmp_path / 'parts'))
    assert costs_and_fetched(tmp_path / 'parts', tmp_path / 'cache of parts') == (lengths, 0)
    copy_dataset(str(tmp_path / 'parts'), str(tmp_path / 'copy'))
    assert costs_and_fetched(tmp_path / 'copy', tmp_path / 'cache of copy') == (lengths, 0)
    reshard(str(tmp_path / 'copy'), str(tmp_path / 'shards'), size_limit=1500, compression='zstd')
    assert costs_and_fetched(tmp_path / 'shards', tmp_path / 'cache of shards') == (lengths, 0)
    write(tmp_path / 'appended', 0, 50, cost=None)
    write(tmp_path / 'appended', 50, 50, append=True)
    cases: list[tuple[str, dict[str, Any]]] = [
        ('copy', {'columns': ['n']}),
        ('appended', {}),
        ('appended', {'order': 'shuffled'}),
    ]
    for number, (source, how) in enumerate(cases):
        with pytest.warns(UserWarning, match="store the costs of the column 'text', which the new ones lack") as warned:
            reshard(str(tmp_path / source), str(tmp_path / f'without {number}'), **how)
        assert len(warned) == 1


def test_conversions_write_them(tmp_path: Path) -> None:
    rows = ''.join(f'{{"n": {number}, "text": "{"x" * (number % 37)}"}}\n' for number in range(100))
    (tmp_path / 'a.jsonl').write_text(rows)
    assert main(['convert', str(tmp_path / 'a.jsonl'), str(tmp_path / 'data'), '--cost', 'text']) == 0
    lengths = [number % 37 for number in range(100)]
    assert costs_and_fetched(tmp_path / 'data', tmp_path / 'cache') == (lengths, 0)
    tokenize(tmp_path / 'a.jsonl', tmp_path / 'tokens', tokenizer=codes, progress_bar=False)
    dataset = StreamingDataset(
        streams=[Stream(remote=str(tmp_path / 'tokens'), local=str(tmp_path / 'cache of tokens'))],
        batch_size=2,
        cost='tokens',
        bucket=2,
    )
    costs = dataset.pool.streams[0].costs
    assert costs is not None
    assert costs.values.tolist() == [length for length in lengths if length]
    assert not [*(tmp_path / 'cache of tokens').rglob('*.mds')]


def codes(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def test_changed_shards_have_their_own(tmp_path: Path) -> None:
    write(tmp_path / 'data', 0, 100)
    costs_and_fetched(tmp_path / 'data', tmp_path / 'cache')
    write(tmp_path / 'data', 1, 100, exist_ok=True)
    costs, _ = costs_and_fetched(tmp_path / 'data', tmp_path / 'cache')
    assert costs == [number % 37 for number in range(1, 101)]


def test_parts_of_an_engine_have_them(tmp_path: Path) -> None:
    dataset = PartedDataset(str(tmp_path / 'data'), {'n': 'int', 'text': 'str'}, {'cost': 'text', 'size_limit': 800})
    writer, parts = dataset.begin(), list[WrittenPart]()
    for task in range(2):
        with writer.open(task) as part:
            for number in range(50 * task, 50 * task + 50):
                part.add({'n': number, 'text': 'x' * (number % 37)})
            parts.append(part.finish())
    dataset.finish(parts)
    lengths = [number % 37 for number in range(100)]
    assert costs_and_fetched(tmp_path / 'data', tmp_path / 'cache') == (lengths, 0)


@pytest.mark.parametrize(
    ('values', 'costs'),
    [
        (['5', '007', ' 12 ', '+3'], [5, 7, 12, 3]),
        (['a text', '', '2024', '日本'], [6, 0, 4, 2]),
        (['1. First, open the box.', '2024 was a warm year'], [23, 20]),
        (['12 + 5 = ?', '3 * 4 = ?', '7'], [10, 9, 1]),
        ([], []),
        ([b'abc', b''], [3, 0]),
        ([5, Decimal(7), np.int16(3), np.uint64(2**32 - 1)], [5, 7, 3, 2**32 - 1]),
        ([[1, 2], [], (3,)], [2, 0, 1]),
        ([np.zeros(3), np.zeros(0)], [3, 0]),
        (np.zeros((2, 7)), [7, 7]),
        (np.array([4, 5], np.uint8), [4, 5]),
    ],
)
def test_costs_of_values(values: Any, costs: list[int]) -> None:
    assert costs_of_values(values, 'c').tolist() == costs


@pytest.mark.parametrize(
    'bad',
    [
        *('', 'n/a', '3 s', '1:30', '1.5', '-1', '1,200', '5000000000', '9' * 5000, '٣'),
    ],
)
def test_texts_beside_numbers_are_refused_with_their_row(bad: str) -> None:
    with pytest.raises(StreamError, match=r"column 'c', which has .* in row 2 of these samples. Correct it"):
        costs_of_values(['1', '2', bad, '4', '5', '6', '7'], 'c')


@pytest.mark.parametrize(
    'values', [['1:30', '2:10'], ['3 s', '4 s'], ['1 min 3 s', '59 s'], ['1.5', '.5'], ['-1', '-2']]
)
def test_digits_of_a_text_do_not_count(values: list[str]) -> None:
    with pytest.raises(StreamError, match='in row 0 of'):
        costs_of_values(values, 'c')


@pytest.mark.parametrize(
    'bad',
    [
        *(None, True, 1.0, math.nan, -1, 2**32, Decimal('1.5'), Decimal('NaN'), Decimal('Infinity'), np.float32(2)),
        *(np.bool_(1), np.zeros((80, 3)), torch.zeros(80, 3), np.zeros(()), {'tokens': [1, 2]}, {}),
        *([{'role': 'user', 'content': 'Hi'}], [[1, 2], [3]], ['a', 'b'], [np.zeros(3)]),
    ],
    ids=str,
)
def test_values_without_a_cost_are_refused(bad: object) -> None:
    with pytest.raises(StreamError, match=r"column 'c', which has .* in row 1 of these samples"):
        costs_of_values([[1, 2], bad], 'c')


def test_arrays_of_several_axes_are_refused_by_the_writer() -> None:
    with pytest.raises(ConfigError, match='arrays of one axis'):
        MDSEncoder({'mel': 'ndarray:float32:80,3'}, cost='mel')
    with pytest.raises(StreamError, match=r'an array of shape \[2, 80, 3\] in row 0|an array of shape \[80, 3\]'):
        costs_of_values(np.zeros((2, 80, 3)), 'mel')
