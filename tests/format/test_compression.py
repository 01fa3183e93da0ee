"""Compressed files: every algorithm and level, several members, damage, bombs."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import random
import sys
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import brotli
import pytest
import snappy
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, ShardError
from headrace.format import compression
from headrace.format.compression import (
    compress,
    decompress,
    get_compression_extension,
    get_compressions,
    is_compression,
    unpack_file,
)
from headrace.format.compression_algorithms import Brotli, Bzip2, Gzip, Snappy, Zstandard

if TYPE_CHECKING:
    from pathlib import Path

ALGORITHMS = ['br', 'bz2', 'gz', 'snappy', 'zstd']
DATA = random.Random(0).randbytes(3000) + b'headrace ' * 5000


def unpack(tmp_path: Path, algorithm: str, packed: bytes, limit: int) -> bytes:
    (tmp_path / 'packed').write_bytes(packed)
    try:
        unpack_file(algorithm, tmp_path / 'packed', tmp_path / 'raw', limit)
    finally:
        if (tmp_path / 'raw').exists():
            assert (tmp_path / 'raw').stat().st_size <= limit
    return (tmp_path / 'raw').read_bytes()


@pytest.mark.parametrize('algorithm', sorted(get_compressions()))
def test_every_algorithm_and_level(algorithm: str, tmp_path: Path) -> None:
    data = DATA if algorithm != 'br' and not algorithm.startswith(('br:1', 'zstd:2')) else DATA[:4000]
    packed = compress(algorithm, data)
    assert decompress(algorithm, packed) == data
    assert unpack(tmp_path, algorithm, packed, len(data)) == data
    name = algorithm.partition(':')[0]
    assert is_compression(algorithm)
    assert get_compression_extension(algorithm) == name
    theirs = {
        'br': brotli.decompress,
        'bz2': bz2.decompress,
        'gz': gzip.decompress,
        'snappy': snappy.decompress,
        'zstd': lambda b: zstandard.decompress(b),
    }
    assert theirs[name](packed) == data


def test_levels_and_names() -> None:
    assert [(c.extension, c().level) for c in (Brotli, Bzip2, Gzip, Snappy, Zstandard)] == [
        ('br', 11),
        ('bz2', 9),
        ('gz', 9),
        ('snappy', None),
        ('zstd', 3),
    ]
    assert Zstandard(22).level == 22
    assert Brotli.levels == list(range(12))
    assert compress(None, b'x') == decompress(None, b'x') == b'x'
    assert not is_compression(None)
    assert Brotli(1).compress(DATA) == brotli.compress(DATA, quality=1)
    assert Gzip().compress(DATA) == Gzip().compress(DATA)
    assert Gzip().compress(DATA)[4:8] == bytes(4)


@pytest.mark.parametrize(
    'algorithm',
    [
        '',
        'lz4',
        'zstd:',
        'zstd:0',
        'zstd:23',
        'gz:10',
        'br:12',
        'bz2:0',
        'snappy:1',
        'zstd:x',
        'zstd:+3',
        'zstd:\u0663',
        'zstd:3:3',
        ':3',
        'GZ',
        'zstd:' + '9' * 5000,
    ],
)
def test_unknown_names(algorithm: str) -> None:
    assert not is_compression(algorithm)
    for function in (compress, decompress):
        with pytest.raises(ValueError, match='is not a supported compression algorithm'):
            function(algorithm, b'')
    with pytest.raises(ConfigError):
        get_compression_extension(algorithm)


def test_unknown_levels() -> None:
    for kind, level in ((Brotli, 12), (Gzip, -1), (Bzip2, 0), (Zstandard, 0), (Snappy, 1)):
        with pytest.raises(ConfigError, match='levels of'):
            kind(level)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_only_bytes_are_taken(algorithm: str) -> None:
    for function in (compress, decompress):
        with pytest.raises(TypeError, match='works on bytes'):
            function(algorithm, 'text')


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@pytest.mark.parametrize('size', [0, 1, 2**18 - 1, 2**18, 2**18 + 1, 3 * 2**18])
def test_sizes_around_a_chunk(algorithm: str, size: int, tmp_path: Path) -> None:
    level = '' if algorithm == 'snappy' else ':1'
    for data in (bytes(size), random.Random(size).randbytes(size)):
        packed = compress(algorithm + level, data)
        assert unpack(tmp_path, algorithm, packed, size) == data
        assert decompress(algorithm, packed) == data
        for wrong in (size - 1, size + 1, 2 * size + 5):
            if wrong >= 0:
                with pytest.raises(ShardError):
                    unpack(tmp_path, algorithm, packed, wrong)


@pytest.mark.parametrize('algorithm', ['bz2', 'gz', 'zstd'])
def test_several_members_are_read_as_one(algorithm: str, tmp_path: Path) -> None:
    parts = [DATA, b'', b'abc', DATA[:100]]
    packed = b''.join(compress(algorithm, part) for part in parts)
    assert decompress(algorithm, packed) == b''.join(parts)
    assert unpack(tmp_path, algorithm, packed, sum(map(len, parts))) == b''.join(parts)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@pytest.mark.parametrize('garbage', [b'\0', b'x', b'garbage', bytes(2000), b'x' * 600_000])
def test_garbage_behind_the_data_is_refused(algorithm: str, garbage: bytes, tmp_path: Path) -> None:
    for data in (DATA, b''):
        with pytest.raises(ShardError):
            unpack(tmp_path, algorithm, compress(algorithm, data) + garbage, len(data))
        with pytest.raises(ShardError):
            decompress(algorithm, compress(algorithm, data) + garbage)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_truncated_files_are_refused(algorithm: str, tmp_path: Path) -> None:
    packed = compress(algorithm, DATA)
    for size in [*range(12), len(packed) // 2, *range(len(packed) - 10, len(packed))]:
        with pytest.raises(ShardError):
            unpack(tmp_path, algorithm, packed[:size], len(DATA))
        with pytest.raises(ShardError):
            decompress(algorithm, packed[:size])


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@pytest.mark.parametrize('other', ALGORITHMS)
def test_files_of_another_algorithm_are_refused(algorithm: str, other: str, tmp_path: Path) -> None:
    if algorithm != other:
        with pytest.raises(ShardError):
            unpack(tmp_path, algorithm, compress(other, DATA), len(DATA))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    at=st.integers(0, 10_000),
    value=st.integers(0, 255),
    data=st.binary(max_size=300),
)
def test_damaged_files_give_the_size_or_an_error(
    algorithm: str, at: int, value: int, data: bytes, tmp_path: Path
) -> None:
    packed = bytearray(compress(algorithm, data))
    packed[at % len(packed)] = value
    with contextlib.suppress(ShardError):
        assert len(unpack(tmp_path, algorithm, bytes(packed), len(data))) == len(data)


def bomb(algorithm: str, size: int) -> bytes:
    if algorithm == 'snappy':
        return snappy.compress(bytes(size))
    if algorithm == 'gz':
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    elif algorithm == 'bz2':
        packer = bz2.BZ2Compressor()
    elif algorithm == 'br':
        return brotli.compress(bytes(size), quality=5)
    else:
        packer = zstandard.ZstdCompressor().compressobj()
    return b''.join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_bomb_is_refused_before_it_fills_memory_or_disk(algorithm: str, tmp_path: Path) -> None:
    packed = bomb(algorithm, 256 << 20)
    tracemalloc.start()
    try:
        for limit in (0, 400, 1 << 20):
            with pytest.raises(ShardError, match='holds'):
                unpack(tmp_path, algorithm, packed, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (48 << 20) + 2 * len(packed)


def test_a_brotli_without_limits_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = brotli.compress(DATA)
    monkeypatch.setattr(brotli, 'Decompressor', object)
    with pytest.raises(ImportError, match=r'brotli>=1\.2'):
        unpack(tmp_path, 'br', packed, len(DATA))


@pytest.mark.parametrize(('algorithm', 'package'), [('br', 'brotli'), ('snappy', 'snappy')])
def test_a_missing_package_names_the_extra(
    algorithm: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packed = compress(algorithm, b'x')
    monkeypatch.setitem(sys.modules, package, None)
    assert is_compression(algorithm)
    for call in (
        lambda: compress(algorithm, b'x'),
        lambda: decompress(algorithm, packed),
        lambda: unpack(tmp_path, algorithm, packed, 1),
    ):
        with pytest.raises(ImportError, match=r"pip install 'headrace\[compression\]'"):
            call()


def test_a_replaced_file_is_not_longer_than_its_content(tmp_path: Path) -> None:
    (tmp_path / 'raw').write_bytes(bytes(10_000))
    assert unpack_and_read(tmp_path) == b'abc'
    assert compression.get_compressions() >= {'zstd', 'zstd:22', 'br:0', 'snappy'}


def unpack_and_read(tmp_path: Path) -> bytes:
    (tmp_path / 'packed').write_bytes(compress('gz', b'abc'))
    unpack_file('gz', tmp_path / 'packed', tmp_path / 'raw', 3)
    return (tmp_path / 'raw').read_bytes()
