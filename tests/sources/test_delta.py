"""Delta tables that `deltalake` wrote, and logs with what it does not write."""

from __future__ import annotations

import datetime as dt
import json
import struct
import subprocess
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamingDataLoader, Topology
from headrace.errors import ConfigError, EmptyDatasetError, FormatError, StreamError
from headrace.sources import delta
from tests.support.sources.tables import DeltaTable, by_id, dataset, numbers, read_logs_here, rows_of

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')
deltalake = pytest.importorskip('deltalake')

PROCESS = subprocess.run


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    read_logs_here(monkeypatch)


@pytest.fixture(scope='module')
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return DeltaTable.evolved(tmp_path_factory.mktemp('a table')).place


def test_a_time_stands_for_the_last_version_until_then(table: Path, tmp_path: Path) -> None:
    commits = sorted((table / '_delta_log').glob('*.json'))
    times = [json.loads(commit.read_text().splitlines()[0])['commitInfo']['timestamp'] for commit in commits]
    at = dt.datetime.fromtimestamp(times[2] / 1000, dt.timezone.utc)
    utc = {'version': at.replace(tzinfo=None).isoformat()}
    zoned = {'version': at.astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat()}
    two = rows_of(table, tmp_path / 'cache', format='delta', format_options={'version': 2})
    assert rows_of(table, tmp_path / 'cache', format='delta', format_options=utc) == two
    assert rows_of(table, tmp_path / 'cache', format='delta', format_options=zoned) == two
    with pytest.raises(FormatError, match='first version .* is of 2.*, after `version`'):
        rows_of(table, tmp_path / 'cache', format='delta', format_options={'version': '1999-01-01'})


@pytest.mark.parametrize('version', [-1, True, 'yesterday', 1.5, [1]])
def test_a_version_is_a_number_or_a_time(table: Path, tmp_path: Path, version: Any) -> None:
    with pytest.raises(ConfigError, match='`version` of a Delta table is a number from 0 on, or a time'):
        rows_of(table, tmp_path / 'cache', format='delta', format_options={'version': version})


def test_a_log_is_read_in_another_process_and_workers_are_forked(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta.subprocess, 'run', PROCESS)
    (tmp_path / 'here').mkdir()
    (tmp_path / 'here/select.py').write_text('raise RuntimeError')  # as a module of Python is called
    monkeypatch.chdir(tmp_path / 'here')
    with monkeypatch.context() as patch:
        patch.setattr(deltalake, 'DeltaTable', None)  # of this process
        found = dataset(table, tmp_path / 'cache', columns=['id', 'day'])
    loader = StreamingDataLoader(found, num_workers=2, topology=Topology())
    ids = [number for batch in loader for number in batch['id'].tolist()]
    assert sorted(ids) == sorted(deltalake.DeltaTable(table).to_pyarrow_table()['id'].to_pylist())
    broken = tmp_path / 'broken'
    deltalake.write_deltalake(broken, pa.table({'id': [1]}))
    (broken / '_delta_log/00000000000000000000.json').write_text('{"add": 1}\n')
    with pytest.raises(FormatError, match='Version 0 of the Delta table .*broken cannot be read: .*Restore its log'):
        rows_of(broken, tmp_path / 'other')


# Logs with what `deltalake` does not write.

_DIGITS = '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#'


def z85(data: bytes) -> str:
    data += bytes(-len(data) % 4)
    numbers = (int.from_bytes(data[at : at + 4], 'big') for at in range(0, len(data), 4))
    return ''.join(_DIGITS[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))


def vector_of(deleted: list[int]) -> bytes:
    """A vector of deleted rows, as the protocol of Delta lays it out."""
    roaring = pytest.importorskip('pyroaring')
    keys = sorted({row >> 32 for row in deleted})
    maps = [
        struct.pack('<I', key) + roaring.BitMap([row & 0xFFFFFFFF for row in deleted if row >> 32 == key]).serialize()
        for key in keys
    ]
    return struct.pack('<IQ', 1681511377, len(keys)) + b''.join(maps)


class Log:
    """A table of one file of forty rows, whose log is written by hand."""

    def __init__(self, table: Path, features: list[str]) -> None:
        self.table, self.number, self.vector = table, 1, {}
        deltalake.write_deltalake(table, pa.table({'id': range(40), 'x': range(100, 140)}))
        lines = (table / '_delta_log/00000000000000000000.json').read_text().splitlines()
        self.add = next(action['add'] for action in map(json.loads, lines) if 'add' in action)
        needs = {'readerFeatures': features, 'writerFeatures': features}
        self.commit({'protocol': {'minReaderVersion': 3, 'minWriterVersion': 7, **needs}})

    def commit(self, *actions: dict[str, Any]) -> None:
        path = self.table / f'_delta_log/{self.number:020}.json'
        path.write_text(''.join(json.dumps(action) + '\n' for action in actions))
        self.number += 1

    def replace(self, **more: Any) -> None:
        now = {**self.add, **more}
        gone = {'path': self.add['path'], 'dataChange': True, 'deletionTimestamp': 1}
        if 'deletionVector' in self.add:
            gone['deletionVector'] = self.add['deletionVector']
        self.add = now
        self.commit(*[{'remove': gone}] * ('deletionVector' in more), {'add': now})

    def delete(self, deleted: list[int], *, in_file: bool) -> None:
        data = vector_of(deleted)
        about = {'storageType': 'i', 'pathOrInlineDv': z85(data)}
        if in_file:
            name = uuid.uuid4()
            content = b'\x01' + struct.pack('>I', len(data)) + data + struct.pack('>I', zlib.crc32(data))
            (self.table / f'deletion_vector_{name}.bin').write_bytes(content)
            about = {'storageType': 'u', 'pathOrInlineDv': z85(name.bytes), 'offset': 1}
        self.replace(deletionVector={**about, 'sizeInBytes': len(data), 'cardinality': len(deleted)})


def test_deleted_rows_are_left_out_and_cached_shards_are_made_anew(tmp_path: Path) -> None:
    log = Log(tmp_path / 'table', ['deletionVectors'])
    seen: list[list[int]] = []
    every = [[1, 3, 39], [1, 2, 39], [*range(40)], [0]]
    for number, deleted in enumerate(every):
        log.delete(deleted, in_file=number % 2 == 0)
        if len(deleted) == 40:
            with pytest.raises(EmptyDatasetError, match='have no rows'):
                rows_of(log.table, tmp_path / 'none', format='delta')
            continue
        seen.append([row['id'] for row in rows_of(log.table, tmp_path / 'cache', columns=['id'])])
    assert seen == [[n for n in range(40) if n not in deleted] for deleted in every if len(deleted) < 40]
    for vector in log.table.glob('deletion*.bin'):
        vector.unlink()
    with pytest.raises(FormatError, match='Version 2 of the Delta table .* cannot be read: '):
        rows_of(log.table, tmp_path / 'cache', format='delta', format_options={'version': 2})


def test_columns_have_physical_names(tmp_path: Path) -> None:
    log = Log(tmp_path / 'table', ['columnMapping'])

    def field(name: str, kind: str, number: int, physical: str) -> dict[str, Any]:
        about = {'delta.columnMapping.id': number, 'delta.columnMapping.physicalName': physical}
        return {'name': name, 'type': kind, 'nullable': True, 'metadata': about}

    fields = [
        field('x', 'long', 1, 'id'),
        field('id', 'long', 2, 'x'),
        field('P q', 'date', 3, 'col-p'),
        field('new', 'string', 4, 'col-n'),
    ]
    about = {'id': 'x', 'format': {'provider': 'parquet', 'options': {}}, 'partitionColumns': ['P q']}
    mode = {'delta.columnMapping.mode': 'name', 'delta.columnMapping.maxColumnId': '4'}
    schema = json.dumps({'type': 'struct', 'fields': fields})
    log.commit({'metaData': {**about, 'schemaString': schema, 'configuration': mode}})
    log.replace(partitionValues={'col-p': '1970-01-03'})
    found = rows_of(log.table, tmp_path / 'cache')
    assert found == [{'x': n, 'id': 100 + n, 'P q': 2, 'new': None} for n in range(40)]


@pytest.mark.parametrize('mode', ['name', 'id'])
def test_ids_of_files_count_in_the_mode_of_ids_only(tmp_path: Path, mode: str) -> None:
    log = Log(tmp_path / 'table', ['columnMapping'])

    def field(name: str, number: int) -> dict[str, Any]:
        about = {'delta.columnMapping.id': number, 'delta.columnMapping.physicalName': name}
        return {'name': name, 'type': 'long', 'nullable': True, 'metadata': about}

    schema = json.dumps({'type': 'struct', 'fields': [field('id', 1), field('x', 2)]})
    about = {'id': 'x', 'format': {'provider': 'parquet', 'options': {}}, 'partitionColumns': []}
    options = {'delta.columnMapping.mode': mode, 'delta.columnMapping.maxColumnId': '2'}
    log.commit({'metaData': {**about, 'schemaString': schema, 'configuration': options}})
    path = log.table / log.add['path']
    kinds = [pa.field(name, pa.int64(), metadata={'PARQUET:field_id': n}) for name, n in (('id', '2'), ('x', '1'))]
    pq.write_table(pa.table({'id': range(40), 'x': range(100, 140)}, schema=pa.schema(kinds)), path)
    log.replace(size=path.stat().st_size)
    names = ('id', 'x') if mode == 'name' else ('x', 'id')
    right: list[dict[str, Any]] = [dict(zip(names, (n, 100 + n), strict=True)) for n in range(40)]
    assert rows_of(log.table, tmp_path / 'cache') == by_id(right)


@pytest.mark.parametrize(
    ('info', 'is_read'), [({'inCommitTimestamp': 2000}, True), ([], False), ('x', False), (None, False)]
)
def test_a_version_by_time_needs_the_times_of_commits(tmp_path: Path, info: Any, is_read: bool) -> None:
    log = Log(tmp_path / 'table', [])
    for number in range(2):
        path = log.table / f'_delta_log/{number:020}.json'
        lines = [line for line in path.read_text().splitlines() if 'commitInfo' not in line]
        path.write_text('\n'.join([json.dumps({'commitInfo': info}), *lines, '']))
    options = {'format_options': {'version': '2020-01-01'}}
    if is_read:
        assert len(rows_of(log.table, tmp_path / 'cache', format='delta', **options)) == 40
    else:
        with pytest.raises(FormatError, match='does not say its time'):
            rows_of(log.table, tmp_path / 'cache', format='delta', **options)


def test_what_readers_must_know_and_do_not_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path / 'table', ['deletionVectors', 'columnMapping'])
    log.commit(
        {
            'protocol': {
                'minReaderVersion': 3,
                'minWriterVersion': 7,
                'readerFeatures': ['variantType'],
                'writerFeatures': ['variantType'],
            }
        }
    )
    with pytest.raises(FormatError, match='needs readers that know variantType, which headrace does not'):
        rows_of(log.table, tmp_path / 'cache')


def test_files_that_are_not_there_or_elsewhere_are_named(tmp_path: Path) -> None:
    log = Log(tmp_path / 'table', [])
    (log.table / log.add['path']).unlink()
    with pytest.raises(FormatError, match=r'Version 1 .* has the file part-.*.parquet, which is not there.*vacuumed'):
        rows_of(log.table, tmp_path / 'cache')
    log.replace(path='s3://other/bucket/a.parquet')
    with pytest.raises(FormatError, match='has the file s3://other/bucket/a.parquet, which is not there'):
        rows_of(log.table, tmp_path / 'cache')


def test_one_table_is_read_as_a_whole(table: Path, tmp_path: Path) -> None:
    lake = tmp_path / 'lake'
    for name, first in (('train', 0), ('test', 50)):
        deltalake.write_deltalake(
            lake / name, pa.table({'id': [first, first + 1], 'split': ['train', 'validation']}), partition_by=['split']
        )
    with pytest.raises(FormatError, match='reads one Delta table, but here are several: test/, train/'):
        rows_of(lake, tmp_path / 'cache')
    found = rows_of(lake, tmp_path / 'cache', split='train')
    assert found == [{'id': 0, 'split': 'train'}, {'id': 1, 'split': 'validation'}]
    with pytest.raises(StreamError, match='A Delta table is read as a whole, but `split` names some'):
        rows_of(lake / 'test', tmp_path / 'other', split='validation')
    with pytest.raises(FormatError, match="This is a table .* Read it with `format='delta'`"):
        rows_of(lake / 'test', tmp_path / 'other', format='parquet')
    assert len(rows_of(f'{lake}/test/*/*.parquet', tmp_path / 'files')) == 2


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def test_a_log_that_is_cut_or_lacks_a_commit_is_an_error(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, numbers(0, 10))
    table.append(numbers(10, 10))
    table.own.delete('id = 3')
    whole = [{'id': n} for n in range(20) if n != 3]
    for path in sorted((table.place / '_delta_log').glob('*.json')):
        text = path.read_text()
        lines = lines_of(path)
        cuts = {len(''.join(lines[:count])) for count in range(len(lines))}
        for cut in sorted({*cuts, *(at - 1 for at in cuts if at), 1, len(text) // 2, len(text) - 2}):
            path.write_text(text[:cut])
            with pytest.raises(FormatError, match=r'(?s)Version 2 of the Delta table .*data cannot be read: .*Restore'):
                rows_of(table.place, tmp_path / f'cut-{path.name}-{cut}')
        path.unlink()
        if path.name != f'{2:020}.json':  # the table then has one version fewer
            with pytest.raises(FormatError, match='Version 2 of the Delta table'):
                rows_of(table.place, tmp_path / f'without-{path.name}')
        path.write_text(text)
    assert rows_of(table.place, tmp_path / 'cache') == whole


@pytest.mark.parametrize(
    ('metrics', 'is_whole'),
    [
        ({'numFiles': '1', 'numOutputRows': '40'}, True),  # Spark's
        ({'numFiles': '2', 'numOutputRows': '40'}, True),  # Spark's, with a file without rows, which is not in the log
        ({'numFiles': '2', 'numOutputRows': '41'}, False),
        ({'numFiles': '2'}, False),
        ({'numAddedFiles': '2'}, False),
        ({'numTargetFilesAdded': '2'}, False),
        ({'numFilesAdded': 2}, False),
        ({'num_target_files_added': 2}, False),
        ({'numRemovedFiles': '1'}, False),
        ({'num_removed_files': 1}, False),
        ({'num_target_files_removed': 0, 'numTargetRowsInserted': '7', 'numAddedBytes': '9'}, True),
        ({}, True),
        ('damaged', False),
    ],
)
def test_a_commit_has_the_files_that_it_counts(tmp_path: Path, metrics: Any, is_whole: bool) -> None:
    log = Log(tmp_path / 'table', [])
    log.commit({'commitInfo': {'operation': 'WRITE', 'operationMetrics': metrics}}, {'add': log.add})
    if is_whole:
        assert len(rows_of(log.table, tmp_path / 'cache')) == 40
        return
    with pytest.raises(FormatError, match='Version 2 of the Delta table .* cannot be read'):
        rows_of(log.table, tmp_path / 'cache')


def test_a_version_has_the_files_that_its_checksum_counts(tmp_path: Path) -> None:
    log = Log(tmp_path / 'table', [])
    path = log.table / f'_delta_log/{1:020}.crc'
    path.write_text(json.dumps({'tableSizeBytes': log.add['size'], 'numFiles': 1}))
    assert len(rows_of(log.table, tmp_path / 'cache')) == 40
    path.write_text(json.dumps({'tableSizeBytes': 2 * log.add['size'], 'numFiles': 2}))
    with pytest.raises(FormatError, match=r'counts 2 files of \d+ bytes in its \.crc, but its log has 1 of \d+'):
        rows_of(log.table, tmp_path / 'cut')
    path.write_text('{"tableSize')
    with pytest.raises(FormatError, match=r'The \.crc of the Delta table .* cannot be read'):
        rows_of(log.table, tmp_path / 'cut')


def test_a_file_of_another_size_or_with_other_rows_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / 'table', [])
    size = log.add['size']
    log.replace(size=size + 1)
    with pytest.raises(FormatError, match=rf'counts {size + 1} bytes in .*\.parquet, but there are {size}'):
        rows_of(log.table, tmp_path / 'cache')
    log.replace(size=size, stats=json.dumps({'numRecords': 41}))
    with pytest.raises(FormatError, match='its footer has 40 rows, but its table counts 41'):
        rows_of(log.table, tmp_path / 'cache')
    log.replace(stats=None)
    assert len(rows_of(log.table, tmp_path / 'cache')) == 40


def test_an_incomplete_checkpoint_is_not_read(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, numbers(0, 10))
    table.append(numbers(10, 10))
    table.own.create_checkpoint()
    log = table.place / '_delta_log'
    (whole,) = log.glob('*.checkpoint.parquet')
    whole.rename(log / f'{1:020}.checkpoint.{1:010}.{2:010}.parquet')  # the second part is lost
    assert len(rows_of(table.place, tmp_path / 'cache')) == 20
    (log / f'{0:020}.json').unlink()  # as logs are cleaned up
    with pytest.raises(FormatError, match='Version 1 of the Delta table .* cannot be read'):
        rows_of(table.place, tmp_path / 'lost')
