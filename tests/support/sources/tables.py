"""Tables of lakehouses, written by their own libraries; and what these read, as our readers of Parquet give it."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace import Stream, StreamingDataset
from tests.support.sources.parquet_files import as_python, index, read

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(as_python(rows), key=lambda row: row['id'])


def as_parquet(table: Any, folder: Path) -> list[dict[str, Any]]:
    """The rows of an Arrow table, sorted by `id`, as a plain Parquet file of it is read."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / 'a.parquet')
    return by_id(read(folder, index(folder)))


def dataset(remote: object, cache: Path, **options: Any) -> StreamingDataset:
    stream = Stream(remote=str(remote), local=str(cache), **options)
    return StreamingDataset(streams=[stream], batch_size=4, shuffle=False)


def rows_of(remote: object, cache: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows that a stream reads, sorted by `id`."""
    return by_id([*dataset(remote, cache, **options)])


def numbers(first: int, count: int) -> Any:
    return pa.table({'id': pa.array(range(first, first + count), pa.int64())})


def rows(first: int, count: int, small: Any) -> Any:
    """Rows of many types. `small`: the type of a column of numbers below 100."""
    ids = range(first, first + count)
    utc = dt.timezone.utc
    return pa.table(
        {
            'id': pa.array(ids, pa.int64()),
            'text': pa.array([None if n % 7 == 3 else f'ä {n}' for n in ids], pa.string()),
            'small': pa.array([n % 100 for n in ids], small),
            'half': pa.array([n / 2 for n in ids], pa.float32()),
            'flag': pa.array([n % 2 == 0 for n in ids]),
            'bin': pa.array([bytes([n % 256]) * 3 for n in ids], pa.binary()),
            'day': pa.array([dt.date(2024, 1, 1 + n % 2) for n in ids]),
            'at': pa.array([dt.datetime(2024, 1, 1, n % 24, tzinfo=utc) for n in ids], pa.timestamp('us', 'UTC')),
            'price': pa.array([decimal.Decimal(n) / 4 for n in ids], pa.decimal128(9, 2)),
            'tokens': pa.array([[n] * (1 + n % 3) for n in ids], pa.list_(pa.int32())),
            'deep': pa.array([{'a': n, 'b': [{'c': str(n)}]} for n in ids]),
            'lang': pa.array([None if n % 3 == 2 else ['d/ e%', 'en'][n % 3] for n in ids], pa.string()),
        }
    )


class DeltaTable:
    """A table of Delta in a folder of its own."""

    name, option = 'delta', 'version'

    def __init__(self, folder: Path, data: Any, **options: Any) -> None:
        pytest.importorskip('deltalake')
        self.place = folder / 'data'
        self.append(data, **options)

    def append(self, data: Any, mode: str = 'append', **options: Any) -> None:
        import deltalake

        write: Any = deltalake.write_deltalake
        write(self.place, data, mode=mode, **options)

    @property
    def own(self) -> Any:
        import deltalake

        return deltalake.DeltaTable(self.place)

    @property
    def versions(self) -> Sequence[int]:
        return range(self.own.version() + 1)

    def arrow(self, version: int) -> Any:
        table = self.own
        table.load_as_version(version)
        return table.to_pyarrow_table()

    @classmethod
    def evolved(cls, folder: Path) -> DeltaTable:
        """Two appends, rows deleted, a partition overwritten, a checkpoint, a column added."""
        found = cls(folder, rows(0, 60, pa.int8()), partition_by=['day', 'lang'])
        found.append(rows(60, 40, pa.int8()))
        found.own.delete('id % 10 = 4')
        found.own.create_checkpoint()
        english = rows(100, 30, pa.int8()).filter(pa.array([n % 3 == 1 for n in range(100, 130)]))
        found.append(english, mode='overwrite', predicate="lang = 'en'")
        more = rows(200, 12, pa.int8()).append_column('more', pa.array([f'm{n}' for n in range(12)]))
        found.append(more, schema_mode='merge')
        return found


class IcebergTable:
    """A table of Iceberg with a catalog in a folder."""

    name, option = 'iceberg', 'snapshot'

    def __init__(self, folder: Path, data: Any) -> None:
        """Make a table for rows like these, which are not in it yet."""
        pytest.importorskip('sqlalchemy')
        sql = pytest.importorskip('pyiceberg.catalog.sql')
        folder.mkdir(parents=True, exist_ok=True)
        catalog = sql.SqlCatalog('c', uri=f'sqlite:///{folder}/catalog.db', warehouse=f'file://{folder}')
        catalog.create_namespace('ns')
        self.own: Any = catalog.create_table('ns.t', schema=data.schema)
        self.place = Path(self.own.location().removeprefix('file://'))

    @classmethod
    def of(cls, folder: Path, data: Any) -> IcebergTable:
        found = cls(folder, data)
        found.append(data)
        return found

    def append(self, data: Any) -> None:
        self.own.append(data)

    @property
    def versions(self) -> Sequence[int]:
        return [one.snapshot_id for one in self.own.snapshots()]

    def arrow(self, version: int) -> Any:
        return self.own.scan(snapshot_id=version).to_arrow()

    @classmethod
    def evolved(cls, folder: Path) -> IcebergTable:
        """Partitions that change, columns that are renamed, moved, widened, dropped and added, and rows that go."""
        from pyiceberg.types import LongType, StringType

        keys = pa.array([bytes([n]) * 16 for n in range(110)], pa.binary(16))
        data = rows(0, 60, pa.int32()).append_column('key', keys[:60])
        found = cls(folder, data)
        own = found.own
        with own.update_spec() as spec:
            spec.add_identity('day')
            spec.add_identity('lang')
        own.append(data)
        own.delete('id >= 10 and id < 20')
        with own.update_schema() as schema:
            schema.rename_column('text', 'words')
        with own.update_schema() as schema:
            schema.add_column('text', StringType())
            schema.update_column('small', field_type=LongType())
            schema.delete_column('half')
            schema.move_first('lang')
            schema.rename_column(('deep', 'a'), 'z')
            schema.add_column(('deep', 'more'), LongType())
        with own.update_spec() as spec:
            spec.remove_field('lang')
        more = rows(100, 10, pa.int32()).select(['id', 'bin', 'day']).append_column('key', keys[100:])
        for name, values in {'words': ['w'] * 10, 'text': ['new'] * 10, 'small': [1 << 40] * 10}.items():
            more = more.append_column(name, pa.array(values))
        own.append(more)
        own.overwrite(more.slice(0, 1).set_column(0, 'id', pa.array([7])), overwrite_filter='id = 7')
        return found


def read_logs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read logs of Delta in this process, which saves the start of another one."""
    from headrace.sources import delta

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        try:
            delta._write(command[3], Path(command[4]))  # pyright: ignore[reportPrivateUsage]
        except Exception as error:
            return subprocess.CompletedProcess(command, 1, b'', str(error).encode())
        return subprocess.CompletedProcess(command, 0, b'', b'')

    monkeypatch.setattr(delta.subprocess, 'run', run)
