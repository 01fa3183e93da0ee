"""Compressed files: every algorithm and level, several members, damage, bombs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import brotli
import pytest

from headrace.errors import ConfigError
from headrace.format import compression
from headrace.format.compression import (
    compress,
    decompress,
    get_compression_extension,
    is_compression,
    unpack_file,
)
from headrace.format.compression_algorithms import Brotli, Bzip2, Gzip, Snappy, Zstandard
from tests.support.formats.compressed import DATA

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
