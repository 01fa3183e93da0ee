"""Windows over compressed bytes."""

from __future__ import annotations

import bz2
import gzip

import pytest
import zstandard
from source_cases import index, rows
from tars import pack, pairs

from headrace.errors import ShardError
from headrace.sources import tar
from headrace.sources.windows import unpack


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
