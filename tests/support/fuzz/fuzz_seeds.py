"""Small files of every format that headrace reads, which mutations begin with. Each parser has several."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import gzip
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard

from headrace import MDSWriter
from tests.support.sources import token_files
from tests.support.sources.tfrecord_files import entry, example, feature, field, tfrecord

__all__ = ['PARSERS', 'Objects', 'files_in', 'seeds_of']

Objects = dict[str, bytes]
"""The files of a dataset, by name."""


def _parquet() -> list[Objects]:
    import pyarrow.parquet as pq

    found: list[Objects] = []
    for compression in ('none', 'snappy', 'gzip', 'zstd', 'brotli', 'lz4'):
        for options in ({}, {'data_page_version': '2.0', 'write_page_checksum': True, 'write_page_index': True}):
            out = io.BytesIO()
            pq.write_table(_table(24), out, row_group_size=10, compression=compression, **options)
            found.append({'a.parquet': out.getvalue()})
    return found


def _arrow() -> list[Objects]:
    import pyarrow as pa

    found: list[Objects] = []
    for compression in (None, 'zstd', 'lz4'):
        for kind in (pa.ipc.new_stream, pa.ipc.new_file):
            out = io.BytesIO()
            table = _table(24)
            with kind(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
                writer.write_table(table, max_chunksize=10)
            found.append({'a.arrow': out.getvalue()})
    return found


def _table(count: int) -> Any:
    import pyarrow as pa

    numbers = range(count)
    day = dt.datetime(2020, 1, 1)
    return pa.table(
        {
            'id': pa.array(numbers, pa.int64()),
            'text': pa.array([None if n % 7 == 3 else f'text {n} ' * (n % 4) for n in numbers]),
            'word': pa.array([f'word {n % 3}' for n in numbers]).dictionary_encode(),
            'bin': pa.array([bytes([n]) * n for n in numbers], pa.binary()),
            'half': pa.array([n / 2 for n in numbers], pa.float32()),
            'flag': pa.array([n % 2 == 0 for n in numbers]),
            'price': pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(9, 2)),
            'time': pa.array([day + dt.timedelta(hours=n) for n in numbers], pa.timestamp('us')),
            'list': pa.array([list(range(n % 5)) for n in numbers], pa.list_(pa.int32())),
            'vector': pa.array([[n, n + 1.0] for n in numbers], pa.list_(pa.float32(), 2)),
            'struct': pa.array([{'a': n, 'b': [{'c': str(n)}] * (n % 3)} for n in numbers]),
        }
    )


def _webdataset() -> list[Objects]:
    found: list[Objects] = []
    array = io.BytesIO()
    np.save(array, np.arange(5))
    members = [
        (f'{prefix}{n:03}.{ending}', data)
        for prefix in ('', 'a' * 120 + '/')
        for n in range(3)
        for ending, data in (('jpg', b'\xff\xd8\xff' + bytes(90)), ('npy', array.getvalue()), ('json', b'{"a": 1}'))
    ]
    for kind in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode='w', format=kind) as file:
            for name, data in members[: 9 if kind == tarfile.USTAR_FORMAT else None]:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
        found.append({'t.tar': out.getvalue()})
    return [*found, {'t.tar.gz': gzip.compress(found[0]['t.tar'], mtime=0)}]


def _litdata() -> list[Objects]:
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    samples: list[Any] = [
        {'i': n, 's': f'ä{n}', 'f': n / 3, 'b': bytes([n]) * n, 't': torch.arange(n + 1), 'n': np.arange(n + 2)}
        for n in range(8)
    ]
    kinds: list[tuple[list[Any], dict[str, Any]]] = [
        (samples, {}),
        (samples, {'compression': 'zstd'}),
        (samples, {'compression': 'zstd', 'compression_level': 'chunk'}),
        (samples, {'compression': 'zstd', 'compression_level': 'sample'}),
        ([{'a': n, 'b': ['x'] * n} for n in range(8)], {}),
        ([np.arange(n + 1) for n in range(8)], {'item_loader': TokensLoader()}),
    ]
    found: list[Objects] = []
    for rows, options in kinds:
        with tempfile.TemporaryDirectory() as folder:
            writer = BinaryWriter(folder, chunk_size=4, **options)
            for number, sample in enumerate(rows):
                writer.add_item(number, sample)
            writer.done()
            writer.merge()
            found.append(files_in(folder))
    return found


def _jsonl() -> list[Objects]:
    rows = [{'id': n, 'text': f'ü{n}', 'list': [n] * (n % 3), 'none': None, 'f': n / 3} for n in range(12)]
    data = ''.join(json.dumps(row, ensure_ascii=n % 2 == 0) + '\n' for n, row in enumerate(rows)).encode()
    return _with_compressed('jsonl', data)


def _csv() -> list[Objects]:
    data = b'a,b,c\n' + b''.join(b'%d,"x ""%d""\n z",%d.5\n' % (n, n, n) for n in range(12))
    return _with_compressed('csv', data)


def _tsv() -> list[Objects]:
    return _with_compressed('tsv', b'a\tb\r\n' + b''.join(b'%d\ttext %d\r\n' % (n, n) for n in range(12)))


def _with_compressed(name: str, data: bytes) -> list[Objects]:
    half = len(data) // 2
    return [
        {f'a.{name}': data},
        {f'a.{name}.gz': gzip.compress(data, mtime=0)},
        {f'a.{name}.gz': gzip.compress(data[:half], mtime=0) + gzip.compress(data[half:], mtime=0)},
        {f'a.{name}.zst': zstandard.ZstdCompressor().compress(data)},
        {f'a.{name}.bz2': bz2.compress(data)},
    ]


_DOCUMENTS: Final = [[number] * (number % 5) for number in range(40)]


def _megatron() -> list[Objects]:
    found: list[Objects] = []
    for dtype in token_files.DTYPES:
        documents = [[document, document[:1]] for document in _DOCUMENTS]
        data, idx = token_files.megatron(documents, dtype)
        found.append({'a.bin': data, 'a.idx': idx})
    half = len(data) // 2
    found.append({'a-0-of-2.bin': data[:half], 'a-1-of-2.bin': data[half:], 'a.idx': idx})
    data, idx = token_files.megatron([[[number, 1, 2]] for number in range(30)])
    return [*found, {'a.bin': data, 'a.idx': idx}]


def _tokens() -> list[Objects]:
    found: list[Objects] = [token_files.datatrove('a.ds', _DOCUMENTS, dtype) for dtype in ('uint16', 'uint32')]
    for array in (np.arange(5000, dtype=np.uint16), np.arange(60).reshape(12, 5)):
        out = io.BytesIO()
        np.save(out, array)
        found.append({'a.npy': out.getvalue()})
    found += [{'a.bin': token_files.llm_c(range(5000), dtype)} for dtype in ('uint16', 'uint32')]
    return [*found, {'a.u32': token_files.raw(range(5000), 'uint32')}]


def _tfrecord() -> list[Objects]:
    records = [
        example({'id': n, 'far': -n, 'box': [0.5] * (n % 3 + 1), 'image': b'\xff' * n, 'words': [b'ab'] * (n % 3)})
        for n in range(12)
    ]
    unpacked = entry('id', feature([1], is_packed=False)) + entry('image', feature([b''])) + entry('a', feature([0.5]))
    odd = [field(1, unpacked)] * 6
    files = [tfrecord(records), tfrecord([*records, *odd]), tfrecord(odd)]
    return [{'a.tfrecord': data} for data in files] + [{'a.tfrecord.gz': gzip.compress(files[1], mtime=0)}]


def _mds() -> list[Objects]:
    columns = {
        'id': 'int', 'text': 'str', 'bin': 'bytes', 'fixed': 'ndarray:int16:3', 'any': 'ndarray', 'json': 'json',
        'real': 'str_decimal', 'half': 'float16',
    }  # fmt: skip
    found: list[Objects] = []
    for options in ({}, {'hashes': ['sha1']}, {'compression': 'zstd'}, {'compression': 'gz'}, {'compression': 'br'}):
        with tempfile.TemporaryDirectory() as folder:
            with MDSWriter(out=folder + '/d', columns=columns, size_limit=1500, **options) as writer:
                for n in range(16):
                    writer.write(
                        {
                            'id': n, 'text': f'ü{n}' * n, 'bin': bytes(n), 'fixed': np.arange(3, dtype=np.int16),
                            'any': np.arange(n + 1), 'json': {'a': [n]}, 'real': decimal.Decimal(n) / 4,
                            'half': np.float16(n),
                        }
                    )  # fmt: skip
            found.append(files_in(folder + '/d'))
    return found


def _delta() -> list[Objects]:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    with tempfile.TemporaryDirectory() as folder:
        for first in (0, 30):
            ids = pa.array(range(first, first + 24))
            table = pa.table({'id': ids, 'key': [f'k{n % 2}' for n in range(24)]})
            write_deltalake(folder, table, mode='append', partition_by=['key'])
        DeltaTable(folder).delete('id = 3')
        plain = files_in(folder)
        DeltaTable(folder).create_checkpoint()
        return [plain, {name: data for name, data in files_in(folder).items() if not name.endswith('0.json')}]


def _iceberg() -> list[Objects]:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    with tempfile.TemporaryDirectory() as folder:
        catalog = SqlCatalog('c', uri='sqlite:///:memory:', warehouse=f'file://{folder}')
        catalog.create_namespace('ns')
        data = pa.table({'id': pa.array(range(24), pa.int64()), 'key': [f'k{n % 2}' for n in range(24)]})
        table = catalog.create_table('ns.t', schema=data.schema)
        with table.update_spec() as spec:
            spec.add_identity('key')
        table.append(data)
        table.delete('id = 3')
        return [files_in(f'{folder}/ns/t')]


_WRITE_LANCE: Final = """
import sys, lance, numpy as np, pyarrow as pa
numbers = range(24)
table = pa.table({
    'id': pa.array(numbers, pa.int64()),
    'text': [f'text {n} ' * (n % 4) for n in numbers],
    'maybe': [None if n % 7 == 3 or sys.argv[2] == '2.0' else n / 2 for n in numbers],
    'words': [[f'w{n}'] * (n % 4) for n in numbers],
    'vector': pa.FixedSizeListArray.from_arrays(pa.array(np.arange(48, dtype=np.float32)), 2),
    'deep': [{'a': n, 'b': [str(n)]} for n in numbers],
})
dataset = lance.write_dataset(table, sys.argv[1], data_storage_version=sys.argv[2], max_rows_per_file=14)
dataset.delete('id = 3')
"""


def _lance() -> list[Objects]:
    found: list[Objects] = []
    for version in ('2.0', '2.1', '2.2'):
        with tempfile.TemporaryDirectory() as folder:  # Lance must not run in a process that forks
            subprocess.run([sys.executable, '-c', _WRITE_LANCE, folder, version], check=True)
            files = files_in(folder)
        del files[max(name for name in files if name.startswith('_versions/'))]  # the first version
        found.append({name: data for name, data in files.items() if not name.startswith('_transactions/')})
    return found


def files_in(folder: str | Path) -> Objects:
    paths = sorted(path for path in Path(folder).rglob('*') if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


PARSERS: Final[dict[str, Callable[[], list[Objects]]]] = {
    'parquet': _parquet,
    'arrow': _arrow,
    'delta': _delta,
    'iceberg': _iceberg,
    'webdataset': _webdataset,
    'litdata': _litdata,
    'lance': _lance,
    'tfrecord': _tfrecord,
    'jsonl': _jsonl,
    'csv': _csv,
    'tsv': _tsv,
    'megatron': _megatron,
    'tokens': _tokens,
    'mds': _mds,
    'index': _mds,
}
"""The seeds of each parser. 'mds' mutates shards, 'index' the index.json."""


def seeds_of(parser: str) -> list[Objects]:
    """The undamaged datasets of a parser."""
    return PARSERS[parser]()
