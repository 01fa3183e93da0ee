"""Byte ranges of many objects."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamingDataset
from headrace.errors import ChecksumError, FormatError, ObjectNotFoundError, ShardError, TransferError
from headrace.sources import tar
from headrace.sources.ranges import ByteRange, StreamWindow, read_ranges, unpack
from headrace.storage import Retry, open_store
from tests.support.sources.source_cases import index, rows
from tests.support.sources.tars import pack, pairs
from tests.support.sources.tfrecord_files import example, tfrecord

AT_ONCE = Retry(attempts=3, sleep=lambda seconds: None)


class Watched:
    """A store that counts reads in progress, and breaks some of them."""

    def __init__(self, folder: Path, broken: int = 0) -> None:
        self._store = open_store(folder)
        self.url = self._store.url
        self.broken, self.gets, self.running, self.most = broken, 0, 0, 0
        self._lock = threading.Lock()

    def get(self, key: str, out: BinaryIO, **options: Any) -> str:
        with self._lock:
            self.gets += 1
            self.running += 1
            self.most = max(self.most, self.running)
            is_broken = self.gets <= self.broken
        try:
            if is_broken:
                out.write(b'x')
                raise TransferError('broken')
            return self._store.get(key, out, **options)
        finally:
            with self._lock:
                self.running -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _write(folder: Path, count: int) -> list[ByteRange]:
    for number in range(count):
        (folder / f'{number}').write_bytes(bytes([number]) * 100)
    return [ByteRange(f'{number}', number, number % 50) for number in range(count)]


def test_ranges_come_in_order_despite_broken_transfers(tmp_path: Path) -> None:
    ranges = _write(tmp_path, 60)
    store = Watched(tmp_path, broken=2)
    found = list(read_ranges(store, ranges, retry=AT_ONCE, requests=4))  # pyright: ignore[reportArgumentType]
    assert found == [bytes([number]) * (number % 50) for number in range(60)]
    assert store.most <= 4


def test_no_more_is_read_ahead_than_the_window(tmp_path: Path) -> None:
    ranges = _write(tmp_path, 60)
    store = Watched(tmp_path)
    results = read_ranges(store, ranges[40:], retry=AT_ONCE, requests=2, window=100)  # pyright: ignore[reportArgumentType]
    assert next(results) == bytes([40]) * 40
    assert store.gets <= 3  # of 40 to 42 bytes, two of which fit
    results.close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ('wanted', 'error'),
    [
        (ByteRange('0', 50, 51), ChecksumError),
        (ByteRange('0', 200, 1), ChecksumError),
        (ByteRange('x', 0, 1), ObjectNotFoundError),
    ],
)
def test_bytes_that_are_not_there_are_an_error(tmp_path: Path, wanted: ByteRange, error: type[Exception]) -> None:
    _write(tmp_path, 1)
    with pytest.raises(error):
        list(read_ranges(open_store(tmp_path), [wanted], retry=AT_ONCE))


def test_another_version_of_an_object_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    store = open_store(tmp_path)
    (listed,) = store.list('')
    assert list(read_ranges(store, [ByteRange('0', 0, 5, listed.etag)], retry=AT_ONCE)) == [bytes(5)]
    (tmp_path / '0').write_bytes(b'1' * 101)
    with pytest.raises(ChecksumError, match='was replaced after it was listed'):
        list(read_ranges(store, [ByteRange('0', 0, 5, listed.etag)], retry=AT_ONCE))


@pytest.mark.parametrize(
    ('ending', 'compress'),
    [
        ('.tar.gz', gzip.compress),
        ('.tgz', gzip.compress),
        ('.tar.zst', zstandard.ZstdCompressor().compress),
        ('.tar.bz2', bz2.compress),
    ],
)
def test_compressed_tars(ending, compress):
    data = {f'{n}{ending}': compress(pack(pairs(50, 3000, 50 * n))) for n in range(2)}
    source = index(tar, data)
    assert [(part.ranges, part.rows) for part in source.parts] == [((), 50)] * 2
    plain = {'t.tar': pack(pairs(100, 3000))}
    assert rows(source, data) == rows(index(tar, plain), plain)


@pytest.mark.parametrize('piece', [7, 1 << 20])
@pytest.mark.parametrize(
    ('algorithm', 'compress'),
    [('gz', gzip.compress), ('bz2', bz2.compress), ('zstd', zstandard.ZstdCompressor().compress)],
)
def test_joined_compressed_data_are_read_and_others_refused_with_the_byte(algorithm, compress, piece):
    def read(data: bytes) -> bytes:
        return b''.join(unpack(algorithm, (data[at : at + piece] for at in range(0, len(data), piece)), 'a'))

    whole = compress(b'one') + compress(b'') + compress(b'two')
    assert read(whole) == b'onetwo'
    for more in (b'other bytes', bytes(100)):
        with pytest.raises(ShardError, match=rf'a is not a complete {algorithm} file: .* from byte {len(whole)} on'):
            read(whole + more)


def test_a_bomb_is_refused():
    data = gzip.compress(bytes(8 << 20))
    with pytest.raises(ShardError, match='at most 1000 bytes'):
        list(unpack('gz', iter([data]), 'a.tar.gz', 1000))


class Held(Watched):
    """A store whose reads, but the first, wait for `let_go`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.let_go = threading.Event()

    def get(self, key: str, out: BinaryIO, **options: Any) -> str:
        assert key == '1' or self.let_go.wait(60)
        return super().get(key, out, **options)


def test_a_reader_that_is_dropped_waits_for_no_thread(tmp_path: Path) -> None:
    """The garbage collector may drop it in a thread that holds the locks which a join needs."""
    store: Any = Held(tmp_path)
    pieces: Any = read_ranges(store, _write(tmp_path, 40)[1:])
    assert next(pieces) == b'\1'
    closing = threading.Thread(target=pieces.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    store.let_go.set()


@given(st.lists(st.binary(max_size=9)), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20))))
def test_a_window_has_the_bytes_of_its_chunks(chunks: list[bytes], steps: list[tuple[int, int]]) -> None:
    whole, window, at = b''.join(chunks), StreamWindow(iter(chunks), 'a.tar'), 0
    for further, size in steps:
        at += further
        if at > len(whole):
            with pytest.raises(FormatError, match=f'a.tar ends at byte {len(whole)}, .* follow to {at}'):
                window.take(at, size)
            return
        assert window.take(at, size) == whole[at : at + size]


def test_chunks_that_a_window_passes_are_not_kept() -> None:
    window = StreamWindow((bytes(1 << 18) for _ in range(64)), 'a.tar')
    tracemalloc.start()
    try:
        assert len(window.take((1 << 24) - 9, 20)) == 9
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def with_window(log: int) -> Callable[[bytes], bytes]:
    """Compress as `zstd --long` does from a pipe, whose size it does not know."""
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True, write_content_size=0)

    def compress(data: bytes) -> bytes:
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return compressor.compress(data) + compressor.flush()

    return compress


SKIPPED = struct.pack('<II', 0x184D2A53, 3) + b'abc'
"""A frame of zstd that holds no data, with which parallel compressors begin."""


@pytest.mark.parametrize(
    'compress',
    [
        bytes,
        gzip.compress,
        bz2.compress,
        zstandard.ZstdCompressor().compress,
        with_window(27),
        with_window(31),
        lambda data: SKIPPED + zstandard.ZstdCompressor().compress(data),
    ],
)
@pytest.mark.parametrize('ending', ['', '.gz', '.zst', '.bz2'])
def test_compression_is_told_by_the_content_and_not_by_the_name(compress: Any, ending: str, tmp_path: Path) -> None:
    record = tfrecord([example({'x': 1})])
    for name, data, expected in [
        ('a.jsonl', b'{"x": 1}\n', {'x': 1}),
        ('a.json', b'[{"x": 1}]', {'x': 1}),
        ('a.csv', b'x,y\n1,2\n', {'x': 1, 'y': 2}),
        ('a.tsv', b'x\ty\n1\t2\n', {'x': 1, 'y': 2}),
        ('a.tfrecord', record, {'x': 1}),
        ('a.tar', pack([('0.txt', b'hi')]), {'__key__': '0', 'txt': 'hi'}),
    ]:
        path = tmp_path / f'{name}{ending}'
        path.write_bytes(compress(data))
        dataset = StreamingDataset(remote=str(path), local=str(tmp_path / f'cache-{path.name}'), batch_size=1)
        assert [dataset[row] for row in range(len(dataset))] == [expected]


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('a.csv', lzma.compress(b'x\n1\n'), 'a.csv is a file of xz, .* such as with `xz --decompress < FILE > NEW`'),
        ('a.jsonl', b'\x04\x22\x4d\x18' + bytes(9), 'a.jsonl is a file of lz4'),
        ('a.tar', b'PK\x03\x04' + bytes(9), 'a.tar is a file of zip, .* such as with `unzip -p FILE > NEW`'),
        ('a.jsonl', b'{"x": "\xe4\0\1"}', 'holds binary data .byte 7 is not text'),
        ('a.jsonl', b'{"x": "\xe4"}', 'iconv --from-code=LATIN1'),
        ('a.csv.gz', b'', 'a.csv.gz: the data is not a complete gz file: it ends too early'),
        ('a.csv.gz', b'\x1f', 'a.csv.gz: the data is not a complete gz file: it ends too early'),
        ('a.csv.gz', gzip.compress(b'x\n1\n', mtime=0)[:-1], 'a.csv.gz: the data is not a complete gz file'),
        # A window of 3.75 TiB.
        (
            'a.csv',
            b'\x28\xb5\x2f\xfd\0\xff' + bytes(9),
            'a.csv has a window that is larger than 2 GiB, .*--stdout FILE',
        ),
    ],
)
def test_what_cannot_be_unpacked_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((FormatError, ShardError), match=message):
        StreamingDataset(remote=str(tmp_path / name), local=str(tmp_path / 'cache'), batch_size=1)


LFS = b'version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n'
FORMATS = ['parquet', 'arrow', 'webdataset', 'tfrecord', 'jsonl', 'csv', 'tsv', 'tokens']


@pytest.mark.parametrize('name', FORMATS)
@pytest.mark.parametrize(
    ('content', 'message'),
    [(LFS, 'is a pointer of Git LFS .*`git lfs pull`'), (b'\n<!DOCTYPE html>\n<html>\n1\n</html>', 'is a web page')],
    ids=['lfs', 'page'],
)
def test_what_stands_in_place_of_data_is_no_data(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / 'a.bin').write_bytes(content)
    options = {'format_options': {'token_dtype': 'uint8'}} if name == 'tokens' else {}
    where = {'remote': str(tmp_path / 'a.bin'), 'local': str(tmp_path / 'cache')}
    with pytest.raises(FormatError, match=f'a.bin {message}'):
        StreamingDataset(**where, batch_size=1, format=name, **options)


@pytest.mark.parametrize('name', ['parquet', 'arrow', 'tokens'])
@pytest.mark.parametrize('compress', [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_files_of_which_pieces_are_read_are_not_compressed(name: str, compress: Any, tmp_path: Path) -> None:
    (tmp_path / 'a.bin').write_bytes(compress(bytes(1 << 17)))
    options = {'format_options': {'token_dtype': 'uint8'}} if name == 'tokens' else {}
    where = {'remote': str(tmp_path / 'a.bin'), 'local': str(tmp_path / 'cache')}
    with pytest.raises(FormatError, match='is read in pieces. Unpack it, such as with `.* < FILE > NEW`'):
        StreamingDataset(**where, batch_size=1, format=name, **options)


@pytest.mark.parametrize('name', ['a.jsonl.gz', 'a.csv', 'a.tar.gz', 'a.tfrecord'])
@pytest.mark.parametrize('second', [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_what_was_compressed_twice_is_named(name: str, second: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(second(b'{"x": 1}\n')))
    with pytest.raises(FormatError, match='was compressed twice: .* Unpack it once, such as with `gunzip < FILE'):
        StreamingDataset(remote=str(tmp_path / name), local=str(tmp_path / 'cache'), batch_size=1)


def test_names_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    (tmp_path / 'data').mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / 'data') + b'/\xff.jsonl')).write_bytes(b'{"x": 1}\n')
    with pytest.raises(FormatError, match='name of a file is UTF-8'):
        StreamingDataset(remote=str(tmp_path / 'data'), local=str(tmp_path / 'cache'), batch_size=1)


@pytest.mark.parametrize('name', ['a.jsonl.xz', 'a.parquet.gz', 'a.zip'])
def test_compressed_files_that_are_not_read_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b'x')
    with pytest.raises(ObjectNotFoundError, match=f'Compressed files such as {name} are not read'):
        StreamingDataset(remote=str(tmp_path), local=str(tmp_path / 'cache'), batch_size=1)
