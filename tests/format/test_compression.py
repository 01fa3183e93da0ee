"""Compressed files: every algorithm and level, several members, damage, bombs."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import sys
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
    CHUNK,
    Brotli,
    Bzip2,
    Gzip,
    Snappy,
    Zstandard,
    compress,
    decompress,
    get_compression_extension,
    get_compressions,
    is_compression,
    unpack_file,
)
from headrace.testing.compressions import CompressionContract, unpack
from tests.support.formats.compressed import DATA
from tests.support.suite.example_counts import scaled

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_replaced_file_is_not_longer_than_its_content(tmp_path: Path) -> None:
    (tmp_path / 'raw').write_bytes(bytes(10_000))
    assert unpack_and_read(tmp_path) == b'abc'
    assert compression.get_compressions() >= {'zstd', 'zstd:22', 'br:0', 'snappy'}


def unpack_and_read(tmp_path: Path) -> bytes:
    (tmp_path / 'packed').write_bytes(compress('gz', b'abc'))
    unpack_file('gz', tmp_path / 'packed', tmp_path / 'raw', 3)
    return (tmp_path / 'raw').read_bytes()


ALGORITHMS = ['br', 'bz2', 'gz', 'snappy', 'zstd']


class TestCompressions(CompressionContract):
    @pytest.fixture(params=ALGORITHMS)
    def compression(self, request: pytest.FixtureRequest) -> str:
        return request.param


@pytest.mark.parametrize('algorithm', sorted(get_compressions()))
def test_the_packages_own_readers_read_every_level(algorithm: str) -> None:
    theirs = {
        'br': brotli.decompress,
        'bz2': bz2.decompress,
        'gz': gzip.decompress,
        'snappy': snappy.decompress,
        'zstd': lambda b: zstandard.decompress(b),
    }
    data = DATA if algorithm != 'br' and not algorithm.startswith(('br:1', 'zstd:2')) else DATA[:4000]
    assert theirs[algorithm.partition(':')[0]](compress(algorithm, data)) == data


def test_unknown_levels() -> None:
    for kind, level in ((Brotli, 12), (Gzip, -1), (Bzip2, 0), (Zstandard, 0), (Snappy, 1)):
        with pytest.raises(ConfigError, match='levels of'):
            kind(level)


@pytest.mark.parametrize('algorithm', ['bz2', 'gz', 'zstd'])
def test_several_members_are_read_as_one(algorithm: str, tmp_path: Path) -> None:
    parts = [DATA, b'', b'abc', DATA[:100]]
    packed = b''.join(compress(algorithm, part) for part in parts)
    assert decompress(algorithm, packed) == b''.join(parts)
    assert unpack(tmp_path, algorithm, packed, sum(map(len, parts))) == b''.join(parts)


@pytest.mark.parametrize('algorithm', ['bz2', 'gz', 'zstd'])
def test_members_that_unpack_to_more_than_a_piece(algorithm: str, tmp_path: Path) -> None:
    part = b'a line of text\n' * (3 * CHUNK // 10)
    packed = compress(algorithm, part)
    assert unpack(tmp_path, algorithm, packed * 3, 3 * len(part)) == part * 3
    with pytest.raises(ShardError):
        unpack(tmp_path, algorithm, packed + b'no member of any kind', len(part))


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@pytest.mark.parametrize('other', ALGORITHMS)
def test_files_of_another_algorithm_are_refused(algorithm: str, other: str, tmp_path: Path) -> None:
    if algorithm != other:
        with pytest.raises(ShardError):
            unpack(tmp_path, algorithm, compress(other, DATA), len(DATA))


@settings(max_examples=scaled(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
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
