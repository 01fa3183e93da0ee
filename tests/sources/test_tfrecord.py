"""TFRecord in place: written by the package `tfrecord`, and by hand where that writes no such files."""

from __future__ import annotations

import gzip
import io
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import EmptyDatasetError, FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import tfrecord as source_format
from headrace.storage import open_store
from headrace.testing.oracle import World, check_resume
from headrace.testing.sources import SourceCase, SourceContract
from tests.support.servers.s3 import S3Server
from tests.support.sources.converted import convert
from tests.support.sources.source_cases import MemoryStore, rows
from tests.support.sources.tfrecord_files import example, field, masked_crc, tfrecord

pytest.importorskip('google_crc32c')


def row_of(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        'image/encoded': b'\xff\xd8' + rng.bytes(number % 40),
        'id': number - 3,
        'score': float(np.float32(number / 3)),
        'tokens': rng.integers(-(1 << 40), 1 << 40, 1 + number % 4).tolist(),
        'box': rng.random(4, np.float32).tolist(),
        'words': [b'one', 'zw\u00f6lf'.encode()][: number % 3],
        'maybe': [7] * (number % 2),
    }


ROWS = [row_of(number) for number in range(50)]
COLUMNS = {
    'box': 'ndarray:float32',
    'id': 'int64',
    'image/encoded': 'bytes',
    'maybe': 'json',
    'score': 'float32',
    'tokens': 'ndarray:int64',
    'words': 'json',
}


def write(path: Path, samples: list[dict[str, Any]]) -> bytes:
    """A file of the package `tfrecord`."""
    writer = pytest.importorskip('tfrecord').TFRecordWriter(str(path))
    kinds = {'image/encoded': 'byte', 'words': 'byte', 'text': 'byte', 'score': 'float', 'box': 'float'}
    for sample in samples:
        writer.write({name: (value, kinds.get(name, 'int')) for name, value in sample.items()})
    writer.close()
    return path.read_bytes()


def index(objects: dict[str, bytes], store: MemoryStore | None = None, **how: Any) -> Any:
    store = store or MemoryStore(objects)
    found = source_format.find(list(store.list('')))
    source = source_format.index(store, found, columns=how.pop('columns', None), allow_unsafe_types=False, **how)
    return source_format.load(source.to_bytes())


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value for name, value in row.items()
    }


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    return row | {'words': [word.decode() for word in row['words']], 'maybe': 7 if row['maybe'] else None}


def compressed(algorithm: str, data: bytes) -> bytes:
    return {'': lambda: data, 'gz': lambda: gzip.compress(data), 'zlib': lambda: zlib.compress(data)}[algorithm]()


@pytest.mark.parametrize('algorithm', ['', 'gz', 'zlib'])
def test_every_value_of_another_writer(tmp_path, algorithm):
    first, second = write(tmp_path / 'a', ROWS[:30]), write(tmp_path / 'b', ROWS[30:])
    objects = {'a.tfrecord-0-of-2': compressed(algorithm, first), 'a.tfrecord-1-of-2': compressed(algorithm, second)}
    source = index(objects)
    assert dict(source.columns) == COLUMNS
    assert [part.ranges == () for part in source.parts] == [algorithm != ''] * 2
    assert [plain(row) for row in rows(source, objects)] == [as_read(row) for row in ROWS]
    assert [plain(row)['id'] for row in rows(index(objects, columns=['id']), objects)] == [row['id'] for row in ROWS]


def test_names_of_files():
    names = [
        'a.tfrecord', 'b/c.TFRECORDS', 'd.tfrec', 'e.tfrecord-00000-of-00002', 'f.tfrecord.gz', 'train-00000-of-01024',
        'g.tfrecord-0-of-1.gz', 'g.array_record-00000-of-00001', 'part-0-of-1.parquet', '.a.tfrecord', 'tfrecord',
    ]  # fmt: skip
    found = source_format.find(list(MemoryStore(dict.fromkeys(names, b'')).list('')))
    assert {info.key for info in found} == set(names[:7])


def test_parts_are_runs_of_records(monkeypatch):
    monkeypatch.setattr('headrace.sources.ranges._PART', 500)
    monkeypatch.setattr(source_format, '_MOST', 3)
    samples = [{'id': n, 'data': bytes([n]) * (1000 if n == 9 else 90)} for n in range(20)]
    objects = {'a.tfrecord': tfrecord(map(example, samples))}
    for how in ({}, {'features': {'id': 'int64', 'data': 'bytes'}}):
        source = index(objects, **how)
        assert [part.rows for part in source.parts] == [3, 3, 3, 1, 3, 3, 3, 1]
        assert sum(size for part in source.parts for _, size in part.ranges) == len(objects['a.tfrecord'])
        assert [plain(row) for row in rows(source, objects)] == samples


def test_declared_types_need_the_heads_only():
    samples = [{'id': n, 'image': bytes(1 << 20), 'text': f'\u00e4{n}'.encode()} for n in range(20)]
    objects = {'a.tfrecord': tfrecord(map(example, samples))}
    store = MemoryStore(objects)
    source = index(objects, store, features={'id': 'int', 'text': 'str'})
    assert sum(size for _, _, size in store.reads) < len(objects['a.tfrecord']) // 2
    assert rows(source, objects) == [{'id': n, 'text': f'\u00e4{n}'} for n in range(20)]


def test_features_that_are_left_out_are_named():
    objects = {'a.tfrecord': tfrecord([example({'a': 1, 'b': 2.0, 'c': b'x'})])}
    found = list(MemoryStore(objects).list(''))

    def dropped(columns: list[str] | None, **how: Any) -> list[str]:
        read = source_format.index(MemoryStore(objects), found, columns=columns, allow_unsafe_types=False, **how)
        return sorted(read.dropped)

    assert dropped(['a']) == ['b', 'c']
    assert dropped(None, features={'a': 'int64'}) == ['b', 'c']
    assert dropped(['a'], features={'a': 'int64', 'b': 'float32'}) == ['b', 'c']
    assert dropped(None, raw=True) == []


def test_records_as_they_are(tmp_path):
    records = [b'', b'any', example({'a': 1}), bytes(100)]
    for data in (tfrecord(records), gzip.compress(tfrecord(records))):
        source = index({'a.tfrecord': data}, raw=True)
        assert rows(source, {'a.tfrecord': data}) == [{'record': record} for record in records]


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ({'features': {}}, 'gives names of features their encodings'),
        ({'features': ['a']}, 'gives names of features their encodings'),
        ({'features': {'a': 'pkl'}}, "one of the encodings bytes, .*but 'a' has 'pkl'"),
        ({'features': {'a': 'ndarray:int64:0'}}, "'a' has 'ndarray:int64:0'"),
        ({'features': {'a': 'ndarray:float64'}}, "'a' has 'ndarray:float64'"),
        ({'features': {'a': 3}}, "'a' has 3"),
        ({'raw': 'yes'}, "is true or false, .* but is 'yes'"),
        ({'raw': True, 'features': {'a': 'int64'}}, 'excludes `features`'),
        ({'columns': ['x']}, "asks for 'x', but the TFRecord data has the columns a"),
        ({'columns': ['x'], 'raw': True}, "asks for 'x', but `record` has the columns record"),
    ],
)
def test_options_that_are_refused(how, message):
    with pytest.raises(StreamError, match=message):
        index({'a.tfrecord': tfrecord([example({'a': 1})])}, **how)


GOOD = [example({'a': n, 'b': b'x' * 50}) for n in range(4)]
LENGTH = (1 << 60).to_bytes(8, 'little')
HUGE = LENGTH + masked_crc(LENGTH) + b'x' * 100


def edited(at: int, new: bytes) -> bytes:
    data = tfrecord(GOOD)
    return data[:at] + new + data[at + len(new) :]


SECOND = len(tfrecord(GOOD[:1]))
DAMAGED = {
    'no TFRecord': (b'no records at all', r'at byte 0 of a.tfrecord is damaged: .*It is no TFRecord'),
    'size': (edited(SECOND, b'\x01'), rf'record at byte {SECOND} of a.tfrecord is damaged: the checksum of its size'),
    'data': (edited(SECOND + 20, b'?'), rf'record at byte {SECOND} of a.tfrecord is damaged: the checksum of its data'),
    'cut head': (tfrecord(GOOD)[: SECOND + 5], rf'a.tfrecord ends within the record at byte {SECOND}'),
    'cut data': (tfrecord(GOOD)[:-1], rf'a.tfrecord ends within the record at byte {3 * SECOND}'),
    'long': (HUGE, r'at most 1073741824 bytes, but that at byte 0 of a.tfrecord has 1152921504606846976'),
    'long, compressed': (gzip.compress(HUGE), r'but that at byte 0 of a.tfrecord has 1152921504606846976'),
    'cut gzip': (gzip.compress(tfrecord(GOOD), mtime=0)[:-9], 'a.tfrecord: .*not a complete gz file'),
    'no message': (tfrecord([*GOOD, b'\x0a\x05']), rf'byte {4 * SECOND} of a.tfrecord is not a tf.train.Example.*raw'),
    'sequence': (tfrecord([example({'a': 1}) + field(2, b'')]), 'byte 0 of a.tfrecord is a tf.train.SequenceExample'),
    'no features': (tfrecord([b'', b'']), r'all records of memory:// have none'),
    'images': (tfrecord([example({'a': [b'\xff', b'\xfe'], 'b': 1})]), r"columns=\['b'\], .*'a': \"jpeg_array\""),
}  # fmt: skip


@pytest.mark.parametrize('case', DAMAGED)
def test_damaged_files(case):
    data, message = DAMAGED[case]
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message):
            index({'a.tfrecord': data})
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    if case in ('size', 'cut head', 'cut data', 'long'):  # the rest is seen when the data are read
        with pytest.raises(FormatError, match=message):
            index({'a.tfrecord': data}, features={'a': 'int64'})


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (tfrecord([*GOOD[:3], example({'a': 1.0, 'b': b'x'})]), 'has one value of float32 in feature .a., .*`int64`'),
        (tfrecord([*GOOD[:3], example({'b': b'x'})]), "has no values in feature 'a'"),
        (edited(SECOND + 20, b'?'), f'record at byte {SECOND} of a.tfrecord is damaged'),
        (tfrecord(GOOD)[:-1], 'ends within the record'),
    ],
)
def test_a_part_that_contradicts_the_index(data, message):
    source = index({'a.tfrecord': tfrecord(GOOD)})
    with pytest.raises(ShardError, match=message):
        rows(source, {'a.tfrecord': data})


def test_a_part_with_fewer_records():
    source = index({'a.tfrecord': tfrecord([bytes(10)] * 4)}, raw=True)
    with pytest.raises(ShardError, match=r'a.tfrecord \(part 0\) has 3 records, but its index says 4'):
        list(source.batches(0, memoryview(tfrecord([bytes(10), bytes(10), bytes(36)]))))


def test_a_type_that_is_wrong_is_refused_at_the_start():
    objects = {'a.tfrecord': tfrecord(GOOD)}
    with pytest.raises(FormatError, match="at byte 0 of a.tfrecord has one value of int64 in feature 'a'.*`str`"):
        index(objects, features={'a': 'str'})
    with pytest.raises(FormatError, match="has no values in feature 'c'"):
        index(objects, features={'c': 'int64'})


class TestTfRecord(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        data = [
            {'id': number, 'text': f'\u00e4{number}', 'maybe': [number] * (number % 3), 'data': bytes([number])}
            for number in range(20)
        ]

        def file(part: list[dict[str, Any]]) -> bytes:
            return tfrecord(example({**row, 'text': row['text'].encode()}) for row in part)

        features = {'id': 'int', 'text': 'str', 'maybe': 'json', 'data': 'bytes'}
        objects = {
            'a.tfrecord': file(data[:12]),
            'b.tfrecord': gzip.compress(file(data[12:]), mtime=0),
        }
        return SourceCase('tfrecord', objects, data, {'features': features})


# -- as users read them --------------------------------------------------------------------------------------------


def texts(first: int) -> list[dict[str, Any]]:
    return [{'id': n, 'text': f'\u00e4 "{n}"', 'label': n % 5} for n in range(first, first + 60)]


FEATURES = {'features': {'id': 'int64', 'text': 'str', 'label': 'int64'}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / 'tf records'
    found.mkdir()
    for number in range(2):
        samples = [row | {'text': row['text'].encode()} for row in texts(0)[30 * number : 30 * number + 30]]
        write(found / f'train.tfrecord-{number:05}-of-00002', samples)
    return found


@pytest.mark.s3
def test_from_s3_and_then_from_the_cache(folder, tmp_path, s3_server: S3Server):
    url = f's3://{s3_server.new_bucket()}/data'
    for path in folder.iterdir():
        open_store(url).put(path.name, io.BytesIO(path.read_bytes()), size=path.stat().st_size)
    for options in (None, FEATURES):
        for _ in range(2):
            how = {'format': 'tfrecord', 'format_options': options} if options else {}
            dataset = StreamingDataset(remote=url, local=str(tmp_path / 'cache'), batch_size=1, **how)
            text = [row['text'] if options else row['text'].encode() for row in texts(0)]
            assert [plain(row) for row in dataset] == [
                row | {'text': one} for row, one in zip(texts(0), text, strict=True)
            ]


def test_a_mixture_with_other_formats_resumes_exactly(folder, tmp_path):
    import csv
    import json

    (tmp_path / 'lines').mkdir()
    (tmp_path / 'lines/a.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in texts(1000)), encoding='utf-8')
    (tmp_path / 'table').mkdir()
    with open(tmp_path / 'table/a.csv', 'w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, ['id', 'text', 'label'])
        writer.writeheader()
        writer.writerows(texts(2000))

    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        local = [str(tmp_path / f'cache {number}') for number in range(3)]
        streams = [
            Stream(
                remote=str(folder), local=local[0], name='t', format='tfrecord', format_options=FEATURES, proportion=1
            ),
            Stream(remote=str(tmp_path / 'lines'), local=local[1], name='j', proportion=1),
            Stream(remote=str(tmp_path / 'table'), local=local[2], name='c', proportion=1),
        ]
        dataset = StreamingDataset(
            streams=streams, batch_size=24 // topology.replicas, shuffle=True, num_canonical_nodes=2
        )
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    seen: set[int] = set()
    for batch in make(Topology(), 0):
        assert batch['text'] == [f'\u00e4 "{n}"' for n in batch['id'].tolist()]
        seen |= set(batch['id'].tolist())
    assert seen == {first + row for first in (0, 1000, 2000) for row in range(60)}
    assert check_resume(make, [World(), World(ranks=2), World(ranks=4, nodes=2)], epochs=2, every=4) > 3


def test_where_tests_a_feature(folder, tmp_path):
    dataset = StreamingDataset(remote=str(folder), local=str(tmp_path / 'cache'), where={'label': [3]}, batch_size=1)
    assert [row['id'] for row in dataset] == [row['id'] for row in texts(0) if row['label'] == 3]


def test_a_conversion(folder, tmp_path):
    convert(folder, tmp_path / 'out', format='tfrecord', format_options=FEATURES)
    assert [plain(row) for row in StreamingDataset(local=str(tmp_path / 'out'), batch_size=1)] == texts(0)


def test_array_record_is_refused_by_name(tmp_path, caplog):
    folder = tmp_path / 'data'
    folder.mkdir()
    (folder / 'a.array_record-00000-of-00001').write_bytes(b'x')
    for read in (
        lambda: StreamingDataset(remote=str(folder), local=str(tmp_path / 'cache')),
        lambda: convert(folder, tmp_path / 'out'),
    ):
        with pytest.raises(HeadraceError, match='ArrayRecord, such as a.array_record.*-0.* whole local'):
            read()
    (folder / 'b.tfrecord').write_bytes(tfrecord(GOOD))
    assert len(StreamingDataset(remote=str(folder), local=str(tmp_path / 'cache'))) == len(GOOD)
    assert 'Left out 1 file of another format, such as a.array_record-00000-of-00001' in caplog.text


def test_array_record_is_converted_as_the_page_says(tmp_path, monkeypatch):
    arrays = pytest.importorskip('array_record.python.array_record_module')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'arrays').mkdir()
    for number in range(2):
        writer = arrays.ArrayRecordWriter(f'arrays/{number}.array_record', 'group_size:1')
        for record in GOOD:
            writer.write(record)
        writer.close()
    page = (Path(__file__).parents[2] / 'docs' / 'formats.md').read_text()
    (code,) = [found for found in re.findall(r'^```python\n(.*?)^```$', page, re.M | re.S) if 'array_record' in found]
    exec(compile(code, 'formats.md', 'exec'), {})
    assert [row['record'] for row in StreamingDataset(local='mds', batch_size=1)] == GOOD * 2


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/a.tfrecord').touch()
    with pytest.raises(EmptyDatasetError, match='have no rows'):
        StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'cache'))
