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


def test_a_bomb_is_refused():
    data = gzip.compress(bytes(8 << 20))
    with pytest.raises(ShardError, match='at most 1000 bytes'):
        list(unpack('gz', iter([data]), 'a.tar.gz', 1000))
