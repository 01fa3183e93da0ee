"""Arrow data: what Hugging Face's datasets and pyarrow write, read value by value."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import arrow
from tests.support.sources.arrow_files import BATCHES, ROWS, batch, check, stream
from tests.support.sources.source_cases import index, part_bytes, rows
from tests.support.suite.example_counts import scaled

pa = pytest.importorskip('pyarrow')


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def file(batches: list[Any], **how: Any) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, batches[0].schema, options=pa.ipc.IpcWriteOptions(**how)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue()


@pytest.mark.parametrize('codec', [None, 'lz4', 'zstd'])
@pytest.mark.parametrize('write', [stream, file])
def test_streams_and_files(write, codec):
    objects = {'a.arrow': write(BATCHES, compression=codec)}
    source = index(arrow, objects)
    assert dict(source.columns) == {
        'n': 'int64',
        'text': 'str',
        'tokens': 'ndarray:int64',
        'maybe': 'json',
        'nested': 'json',
        'raw': 'bytes',
    }
    check(objects, ROWS)


def test_feather(tmp_path):
    from pyarrow import feather

    feather.write_feather(pa.Table.from_batches(BATCHES), str(tmp_path / 'a.feather'), chunksize=7)
    check(read(tmp_path), ROWS)


def test_what_datasets_save(tmp_path):
    datasets = pytest.importorskip('datasets')
    from PIL import Image

    pictures = [Image.fromarray(np.full((3, 4, 3), n, np.uint8)) for n in range(6)]
    data = datasets.Dataset.from_dict(
        {
            'text': [f't{n}' for n in range(6)],
            'label': [n % 2 for n in range(6)],
            'picture': pictures,
            'tokens': [list(range(n)) for n in range(6)],
            'grid': [np.full((2, 3), n, np.float32) for n in range(6)],
        },
        features=datasets.Features(
            {
                'text': datasets.Value('string'),
                'label': datasets.ClassLabel(names=['no', 'yes']),
                'picture': datasets.Image(),
                'tokens': datasets.Sequence(datasets.Value('int32')),
                'grid': datasets.Array2D((2, 3), 'float32'),
            }
        ),
    )
    data.save_to_disk(str(tmp_path / 'data'), num_shards=2)
    objects = read(tmp_path / 'data')
    assert 'state.json' in objects
    source = index(arrow, objects)
    assert dict(source.columns) == {
        'text': 'str',
        'label': 'int64',
        'picture': 'jpeg',
        'tokens': 'json',  # one of them is empty
        'grid': 'ndarray:float32:2,3',
    }
    found = rows(source, objects)
    assert [row['text'] for row in found] == data['text']
    assert [row['label'] for row in found] == data['label']
    assert [row['tokens'] for row in found] == data['tokens']
    for n, row in enumerate(found):
        np.testing.assert_array_equal(np.asarray(row['picture']), np.asarray(pictures[n]))
        np.testing.assert_array_equal(row['grid'], np.full((2, 3), n, np.float32))


def test_splits_are_chosen(tmp_path):
    datasets = pytest.importorskip('datasets')
    splits = {name: datasets.Dataset.from_dict({'n': [n, n + 1]}) for n, name in enumerate(('train', 'test'))}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path))
    objects = read(tmp_path)
    with pytest.raises(StreamError, match='several datasets: test, train'):
        index(arrow, objects)
    check({key: data for key, data in objects.items() if key.startswith('train/')}, [{'n': 0}, {'n': 1}])


def test_the_state_orders_and_lists_the_files():
    files = {f'{n}.arrow': stream([batch(5 * n, 5)]) for n in range(3)}
    state = {'_data_files': [{'filename': '2.arrow'}, {'filename': '0.arrow'}]}
    objects = {**files, 'state.json': json.dumps(state).encode()}
    assert [part.key for part in index(arrow, objects).parts] == ['2.arrow', '0.arrow']
    for wrong, message in ((b'{}', '_data_files'), (b'{"_data_files": [{"filename": "../x"}]}', 'does not exist')):
        with pytest.raises(FormatError, match=message):
            index(arrow, {**files, 'state.json': wrong})


def test_dictionaries_that_change():
    kind = pa.dictionary(pa.int32(), pa.string())
    batches = [
        pa.record_batch([pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(words))], ['word'])
        for words in (['a', 'b'], ['a', 'b'], ['c', 'd'])
    ]
    assert batches[0].schema.field(0).type == kind
    objects = {'a.arrow': stream(batches)}
    source = index(arrow, objects)
    assert [len(part.ranges) for part in source.parts] == [2, 2]  # the second dictionary replaces the first
    check(objects, [{'word': word} for word in 'abaabacdc'])
    # A delta adds to the dictionary.
    more = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.int32()), pa.array(['a', 'b', 'z']))
    batches = [batches[0], pa.record_batch([more], ['word'])]
    objects = {'a.arrow': stream(batches, emit_dictionary_deltas=True)}
    assert [len(part.ranges) for part in index(arrow, objects).parts] == [2, 3]
    check(objects, [{'word': word} for word in 'abaza'])
    words = [[str(n) for n in range(count)] for count in range(1, 300)]
    more = [pa.record_batch([pa.array(some).dictionary_encode()], ['word']) for some in words]
    with pytest.raises(FormatError, match='at most 256 dictionaries'):
        index(arrow, {'a.arrow': stream(more, emit_dictionary_deltas=True)})


def test_columns_and_files_must_agree():
    objects = {'a.arrow': stream(BATCHES), 'b.arrow': stream([pa.record_batch([pa.array(['x'])], ['n'])])}
    with pytest.raises(FormatError, match=r"'n' is `int64` in a.arrow, and `str` in b.arrow"):
        index(arrow, objects)
    with pytest.raises(FormatError, match=r"'n' is `int64` in a.arrow, and `.*` in b.arrow"):
        index(arrow, objects, columns=['n'])
    with pytest.raises(StreamError, match="asks for 'x'"):
        index(arrow, objects, columns=['x'])
    check({'a.arrow': stream(BATCHES)}, [{'n': row['n']} for row in ROWS], columns=['n'])


def test_files_with_other_units_of_time_are_refused():
    batches = [pa.record_batch([pa.array([1000], pa.timestamp(unit))], ['at']) for unit in ('ms', 'us')]
    with pytest.raises(
        FormatError, match=r"'at' is `int64 of timestamp\[ms\]` in 0.arrow, and `int64 of timestamp\[us\]` in 1"
    ):
        index(arrow, {f'{number}.arrow': stream([batch]) for number, batch in enumerate(batches)})


GOOD = stream(BATCHES)


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (b'', 'ends at byte 0 without an end mark'),
        (b'x' * 100, 'no message of Arrow data at byte 0'),
        (GOOD[:50], 'ends within its head'),
        (GOOD[:-600], 'ends within its head'),
        (GOOD[:-200], 'ends at byte'),
        (b'\xff\xff\xff\xff\xff\xff\xff\x7f' + GOOD, 'its head has 2147483647 bytes'),
        (b'ARROW1\0\0', 'ends at byte 8 without an end mark'),
        (file(BATCHES)[:-1], 'has no end'),
        (b'ARROW1\0\0' + GOOD, 'has no end'),
        (GOOD[:-8], f'ends at byte {len(GOOD) - 8} without an end mark'),
        (GOOD + b'more', f'no message of Arrow data at byte {len(GOOD)}'),
        (GOOD + stream([batch(3, 4).select(['n'])]), f'has another at byte {len(GOOD)}'),
        (file(BATCHES) + file(BATCHES), 'other data after its records'),
        (GOOD.replace(b'maybe', b'\xffaybe'), 'schema of a.arrow is damaged'),
        (GOOD.replace(b'item', b'\xfftem'), 'schema of a.arrow is damaged'),
    ],
)
def test_damaged_files(data, message):
    with pytest.raises(FormatError, match=message):
        index(arrow, {'a.arrow': data})


def test_joined_streams_are_read():
    words = [pa.record_batch([pa.array(list(text)).dictionary_encode()], ['word']) for text in ('aba', 'xyyz')]
    check({'a.arrows': b''.join(stream([one]) for one in words)}, [{'word': word} for word in 'abaxyyz'])
    check({'a.arrow': GOOD + bytes(8) + GOOD}, ROWS * 2)


def test_a_part_of_other_bytes_is_an_error():
    objects = {'a.arrow': GOOD}
    source = index(arrow, objects)
    data = part_bytes(source, 0, objects)
    with pytest.raises(ShardError, match='is damaged'):
        list(source.batches(0, data[:-100]))
    with pytest.raises(ShardError, match='has 60 rows, but the index says 30'):
        list(source.batches(0, memoryview(bytes(data) * 2)))


SEEDS = [stream(BATCHES), file(BATCHES, compression='zstd'), stream([batch(3, 4)], compression='lz4')]


SEEDS.append(
    stream([pa.record_batch([pa.array(['a', 'b', None]).dictionary_encode(), pa.array([[1], [], None])], 'ab')])
)


changes = st.lists(st.tuples(st.integers(0, 1 << 14), st.binary(min_size=1, max_size=9)), max_size=3)


def check_damaged(seed: int, edits: list[tuple[int, bytes]], end: int) -> None:
    data = bytearray(SEEDS[seed])
    source = index(arrow, {'a.arrow': SEEDS[seed]})
    for at, new in edits:
        start = at % len(data)
        data[start : start + len(new)] = new[: len(data) - start]
    objects = {'a.arrow': bytes(data[: len(data) - end])}
    with contextlib.suppress(HeadraceError):
        rows(index(arrow, objects), objects)
    with contextlib.suppress(HeadraceError):  # against an index that knew it undamaged
        rows(source, objects)


@given(st.integers(0, 3), changes, st.just(0) | st.integers(0, 2000))
@settings(max_examples=scaled(100), deadline=None)
def test_any_damage_is_an_error_of_ours(seed, edits, end):
    check_damaged(seed, edits, end)


@pytest.mark.slow
@given(st.integers(0, 3), changes, st.just(0) | st.integers(0, 2000))
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_damage_is_an_error_of_ours_at_length(seed, edits, end):
    check_damaged(seed, edits, end)
