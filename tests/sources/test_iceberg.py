"""Iceberg tables that `pyiceberg` wrote, and deleted rows, which it does not write."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, EmptyDatasetError, FormatError, HeadraceError, StreamError
from tests.support.sources.tables import IcebergTable, as_parquet, numbers, rows_of

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')
pytest.importorskip('pyiceberg')
pytest.importorskip('sqlalchemy')

from pyiceberg.manifest import (  # noqa: E402
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.typedef import Record  # noqa: E402


def new_table(folder: Path, data: Any) -> Any:
    return IcebergTable.of(folder, data).own


def folder_of(table: Any) -> Path:
    return Path(table.location().removeprefix('file://'))


@pytest.fixture(scope='module')
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return IcebergTable.evolved(tmp_path_factory.mktemp('ware house')).own


def right(table: Any, folder: Path) -> list[dict[str, Any]]:
    return as_parquet(table.scan().to_arrow(), folder)


def test_metadata_of_a_catalog_and_copies(table: Any, tmp_path: Path) -> None:
    place, location = folder_of(table), table.metadata_location
    expected = right(table, tmp_path / 'right')
    found = rows_of(place, tmp_path / 'cache', format='iceberg', format_options={'metadata': location})
    assert found == expected
    first = sorted(Path(place / 'metadata').glob('00001-*.metadata.json'))[0].name
    older = {'metadata': first, 'snapshot': table.snapshots()[0].snapshot_id}
    with pytest.raises(FormatError, match='has the snapshots none, but `snapshot` is'):
        rows_of(place, tmp_path / 'cache', format='iceberg', format_options=older)
    copy = tmp_path / 'copy'
    place_of_copy = copy / 'elsewhere'
    copy.mkdir()
    shutil.copytree(place, place_of_copy)
    assert rows_of(copy, tmp_path / 'copied', split='elsewhere') == expected


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'snapshot': 'now'}, '`snapshot` of an Iceberg table is the number of one'),
        ({'snapshot': True}, '`snapshot` of an Iceberg table is the number of one'),
        ({'metadata': 3}, '`metadata` of an Iceberg table is the name or location'),
    ],
)
def test_options_are_checked(table: Any, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_of(folder_of(table), tmp_path / 'cache', format='iceberg', format_options=options)


def test_metadata_that_are_not_there_are_refused(table: Any, tmp_path: Path) -> None:
    named = {'format': 'iceberg', 'format_options': {'metadata': 'x.metadata.json'}}
    with pytest.raises(StreamError, match="has no metadata file 'x.metadata.json'"):
        rows_of(folder_of(table), tmp_path / 'cache', **named)


def test_a_length_beyond_the_end_of_a_manifest_is_an_error(tmp_path: Path) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 5))
    for path in [*(folder_of(table) / 'metadata').glob('*-m0.avro'), *(folder_of(table) / 'metadata').glob('snap-*')]:
        size = path.stat().st_size
        path.write_bytes((b'Obj\x01\x02' + b'\x80\x80\x80\x80\x02').ljust(size, b'x'))  # a key of 256 MiB
        with pytest.raises(FormatError, match='EOFError'):
            rows_of(folder_of(table), tmp_path / 'cache')


# Deleted rows, which `pyiceberg` reads and does not write.


class Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, 'content': 'deletes'}


def delete(table: Any, path: Path, content: Any, kind: FileFormat) -> Any:
    """Commit a snapshot with a file of deletes; returns the table."""
    io, about, old = table.io, table.metadata, table.current_snapshot()
    number = old.snapshot_id + 1
    entry = DataFile.from_args(
        content=content,
        file_path=f'file://{path}',
        file_format=kind,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    where = f'{table.location()}/metadata'
    made = Deletes(table.spec(), table.schema(), io.new_output(f'{where}/{number}-m.avro'), number, 'null')
    with made as writer:
        writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=entry))
    manifests = [*read_manifest_list(io.new_input(old.manifest_list)), made.to_manifest_file()]
    listed = f'{where}/snap-{number}-0-x.avro'
    with write_manifest_list(2, io.new_output(listed), number, old.snapshot_id, old.sequence_number + 1, 'null') as out:
        out.add_manifests(manifests)
    found = json.loads(about.model_dump_json(by_alias=True))
    now = {**found['snapshots'][-1], 'snapshot-id': number, 'manifest-list': listed}
    now['sequence-number'] = found['last-sequence-number'] = old.sequence_number + 1
    found['snapshots'].append(now)
    found['current-snapshot-id'] = found['refs']['main']['snapshot-id'] = number
    name = f'{where}/{int(Path(table.metadata_location).name[:5]) + 1:05}-x.metadata.json'
    Path(name.removeprefix('file://')).write_text(json.dumps(found))
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(name)


def data_file(table: Any) -> str:
    (task,) = table.scan().plan_files()
    return task.file.file_path


def puffin(file: str, deleted: list[int]) -> bytes:
    """A vector of deleted rows, as the specification of Puffin lays it out."""
    roaring = pytest.importorskip('pyroaring')
    vector = struct.pack('<QI', 1, 0) + roaring.BitMap(deleted).serialize()
    blob = struct.pack('>I', 4 + len(vector)) + b'\xd1\xd3\x39\x64' + vector + bytes(4)
    about = {'type': 'deletion-vector-v1', 'fields': [], 'snapshot-id': 1, 'sequence-number': 1}
    about |= {'offset': 4, 'length': len(blob), 'properties': {'referenced-data-file': file}}
    footer = json.dumps({'blobs': [about]}).encode()
    return b'PFA1' + blob + b'PFA1' + footer + struct.pack('<I', len(footer)) + bytes(4) + b'PFA1'


def test_deleted_rows_are_left_out_and_cached_shards_are_made_anew(tmp_path: Path) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 40))
    place, file = folder_of(table), data_file(table)
    assert len(rows_of(place, tmp_path / 'cache')) == 40
    pq.write_table(
        pa.table({'file_path': [file, 'file:///other', file], 'pos': pa.array([3, 0, 39], pa.int64())}),
        place / 'data/positions.parquet',
    )
    table = delete(table, place / 'data/positions.parquet', DataFileContent.POSITION_DELETES, FileFormat.PARQUET)
    expected = [n for n in range(40) if n not in (3, 39)]
    assert sorted(table.scan().to_arrow()['id'].to_pylist()) == expected
    assert [row['id'] for row in rows_of(place, tmp_path / 'cache')] == expected
    newest = place / 'metadata' / table.metadata_location.rpartition('/')[2]
    text = newest.read_text()
    newest.write_text(json.dumps({**json.loads(text), 'location': 's3://elsewhere/t'}))
    assert [row['id'] for row in rows_of(place, tmp_path / 'moved')] == expected
    newest.write_text(text)
    (place / 'data/vector.puffin').write_bytes(puffin(file, [0, 3, 20]))
    table = delete(table, place / 'data/vector.puffin', DataFileContent.POSITION_DELETES, FileFormat.PUFFIN)
    expected = [n for n in range(40) if n not in (0, 3, 20, 39)]
    assert [row['id'] for row in rows_of(place, tmp_path / 'cache')] == expected
    delete(table, place / 'data/positions.parquet', DataFileContent.EQUALITY_DELETES, FileFormat.PARQUET)
    with pytest.raises(FormatError, match=r'deletes rows by their values \(file.*positions.parquet\).*Compact it'):
        rows_of(place, tmp_path / 'cache')


def test_files_without_ids_are_read_by_the_names_that_the_table_maps(tmp_path: Path) -> None:
    data = pa.table({'id': pa.array(range(5), pa.int64()), 'x': ['a'] * 5})
    table = new_table(tmp_path / 'lake', data)
    pq.write_table(
        pa.table({'x': ['b'] * 5, 'id': pa.array(range(5, 10), pa.int64())}), folder_of(table) / 'old.parquet'
    )
    table.add_files([f'{table.location()}/old.parquet'])
    with table.update_schema() as schema:
        schema.rename_column('x', 'y')
    found = rows_of(folder_of(table), tmp_path / 'cache')
    assert found == right(table, tmp_path / 'right')
    assert [row['y'] for row in found] == ['a'] * 5 + ['b'] * 5


def test_files_elsewhere_and_tables_without_rows_are_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 5))
    place, cache = folder_of(table), tmp_path / 'cache'
    Path(data_file(table).removeprefix('file://')).unlink()
    with pytest.raises(FormatError, match=r'has the file data/.*.parquet, which is not there.*choose another `snap'):
        rows_of(place, cache)
    pq.write_table(numbers(9, 1), tmp_path / 'other.parquet')
    table.add_files([f'file://{tmp_path}/other.parquet'])
    with pytest.raises(FormatError, match='other.parquet, which is not below its location'):
        rows_of(place, cache)
    (place / 'metadata/00009-a.metadata.json').write_text('{}')
    with pytest.raises(FormatError, match='metadata of the Iceberg table .* cannot be read'):
        rows_of(place, cache)
    (place / 'metadata/00009-b.metadata.json').write_text('{}')
    with pytest.raises(FormatError, match='have the same number. Say which is right with `metadata`'):
        rows_of(place, cache)
    empty = IcebergTable(tmp_path / 'empty', numbers(0, 0)).own
    with pytest.raises(FormatError, match='has the snapshots none, but no current one'):
        rows_of(folder_of(empty), cache / 'b', format='iceberg')
    empty.append(numbers(0, 0))
    with pytest.raises(EmptyDatasetError, match='have no rows'):
        rows_of(folder_of(empty), cache / 'c', format='iceberg')
    with pytest.raises(FormatError, match='reads one Iceberg table, but here are several'):
        rows_of(tmp_path, cache / 'd', format='iceberg')


def test_a_hint_names_the_newest_metadata(tmp_path: Path) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 5))
    place = folder_of(table)
    newest = Path(table.metadata_location.removeprefix('file://'))
    older = sorted((place / 'metadata').glob('00000*.json'))[0].read_text()
    text = newest.read_text()
    for path in (place / 'metadata').glob('*.metadata.json'):
        path.unlink()
    (place / 'metadata/v1.metadata.json').write_text(text)
    (place / 'metadata/v2.metadata.json').write_text(older)
    (place / 'metadata/version-hint.text').write_text('1')
    assert [row['id'] for row in rows_of(place, tmp_path / 'cache')] == list(range(5))


def test_a_cut_file_of_the_table_is_an_error(tmp_path: Path) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 10))
    table.append(numbers(10, 10))
    place, whole = folder_of(table), [{'id': n} for n in range(20)]
    newest = place / 'metadata' / table.metadata_location.rpartition('/')[2]
    listed = place / 'metadata' / table.current_snapshot().manifest_list.rpartition('/')[2]
    deleted = place / 'data/positions.parquet'
    files = [newest, listed, *(place / 'metadata').glob('*-m0.avro'), *(place / 'data').rglob('*.parquet')]
    assert len(files) == 6
    for path in files:
        data = path.read_bytes()
        head = data.find(data[-16:]) + 16  # of Avro, which ends with the bytes that follow each block
        cuts = {0, 1, 16, head, head + 1, *(len(data) - less for less in (len(data) // 2, 17, 16, 1))}
        for cut in sorted(cuts - {len(data), len(data) + 1}):
            path.write_bytes(data[:cut])
            with pytest.raises(HeadraceError, match=r'lake/ns/t|no files of a known format'):
                rows_of(place, tmp_path / f'cut-{path.name}-{cut}')
        path.write_bytes(data)
    assert rows_of(place, tmp_path / 'cache') == whole
    pq.write_table(pa.table({'file_path': [data_file(new_table(tmp_path / 'b', numbers(0, 1)))], 'pos': [0]}), deleted)
    delete(table, deleted, DataFileContent.POSITION_DELETES, FileFormat.PARQUET)
    assert rows_of(place, tmp_path / 'deletes') == whole
    deleted.write_bytes(deleted.read_bytes() + b'more')
    with pytest.raises(FormatError, match=r'counts \d+ bytes in data/positions.parquet, but there are \d+'):
        rows_of(place, tmp_path / 'longer')


@pytest.mark.parametrize('total', ['total-records', 'total-data-files', 'total-delete-files'])
def test_a_snapshot_that_counts_more_than_its_manifests_have_is_read_with_a_warning(tmp_path: Path, total: str) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 10))
    newest = folder_of(table) / 'metadata' / table.metadata_location.rpartition('/')[2]
    about = json.loads(newest.read_text())
    about['snapshots'][-1]['summary'][total] = '11'
    newest.write_text(json.dumps(about))
    with pytest.warns(UserWarning, match=rf'counts {total} 11, but its manifests, which are whole, have (0|1|10)\.'):
        assert len(rows_of(folder_of(table), tmp_path / 'warned')) == 10
    del about['snapshots'][-1]['summary'][total]
    newest.write_text(json.dumps(about))
    assert len(rows_of(folder_of(table), tmp_path / 'cache')) == 10


def test_totals_that_count_deleted_rows_among_the_data_refuse_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path / 'lake', numbers(0, 10))
    newest = folder_of(table) / 'metadata' / table.metadata_location.rpartition('/')[2]
    about = json.loads(newest.read_text())
    summary = about['snapshots'][-1]['summary']
    summary |= {'total-data-files': '2', 'total-records': '13'}
    del summary['total-delete-files']  # as old versions of DuckDB write it
    newest.write_text(json.dumps(about))
    assert len(rows_of(folder_of(table), tmp_path / 'cache')) == 10
