"""The contract of compressions, as tests to inherit.

A test class inherits `CompressionContract` and gives it a fixture ``compression``: the name without a level. Import the
module that registers it.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest

from headrace.errors import ShardError
from headrace.format import MDSEncoder, dump_index, parse_index
from headrace.format.compression import (
    compress,
    decompress,
    get_compression_extension,
    get_compressions,
    is_compression,
    unpack_file,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ['CompressionContract', 'unpack']

_DATA: Final = random.Random(0).randbytes(3000) + b'headrace ' * 5000
_CHUNK: Final = 1 << 18


def unpack(folder: Path, compression: str, packed: bytes, limit: int) -> bytes:
    """The content of a file, by `unpack_file`, which never writes more than ``limit`` bytes."""
    (folder / 'packed').write_bytes(packed)
    try:
        unpack_file(compression, folder / 'packed', folder / 'raw', limit)
    finally:
        if (folder / 'raw').exists():
            assert (folder / 'raw').stat().st_size <= limit
    return (folder / 'raw').read_bytes()


class CompressionContract:
    """Tests of the `Compression` protocol."""

    def quick(self, compression: str) -> str:
        """The name with the lowest level, if there are levels: the fastest one, for large data."""
        levels = [name for name in get_compressions() if name.startswith(f'{compression}:')]
        return min(levels, key=lambda name: int(name.partition(':')[2]), default=compression)

    def test_every_level_gives_the_data_back(self, compression: str, tmp_path: Path) -> None:
        data = _DATA[:4000]
        for name in sorted(get_compressions()):
            if name.partition(':')[0] == compression:
                packed = compress(name, data)
                assert is_compression(name)
                assert get_compression_extension(name) == compression
                assert packed == compress(name, data)
                assert decompress(name, packed) == data
                assert unpack(tmp_path, name, packed, len(data)) == data

    def test_only_bytes_are_taken(self, compression: str) -> None:
        for function in (compress, decompress):
            with pytest.raises(TypeError, match='works on bytes'):
                function(compression, 'text')  # type: ignore[arg-type]

    @pytest.mark.parametrize('size', [0, 1, _CHUNK - 1, _CHUNK, _CHUNK + 1, 3 * _CHUNK])
    def test_sizes_around_a_chunk(self, compression: str, size: int, tmp_path: Path) -> None:
        for data in (bytes(size), random.Random(size).randbytes(size)):
            packed = compress(self.quick(compression), data)
            assert unpack(tmp_path, compression, packed, size) == data
            assert decompress(compression, packed) == data
            for wrong in (size - 1, size + 1, 2 * size + 5):
                if wrong >= 0:
                    with pytest.raises(ShardError):
                        unpack(tmp_path, compression, packed, wrong)

    @pytest.mark.parametrize('garbage', [b'\0', b'x', b'garbage', bytes(2000), b'x' * 600_000], ids=len)
    def test_garbage_behind_the_data_is_refused(self, compression: str, garbage: bytes, tmp_path: Path) -> None:
        for data in (_DATA, b''):
            packed = compress(compression, data) + garbage
            with pytest.raises(ShardError):
                unpack(tmp_path, compression, packed, len(data))
            with pytest.raises(ShardError):
                decompress(compression, packed)

    def test_truncated_files_are_refused(self, compression: str, tmp_path: Path) -> None:
        packed = compress(compression, _DATA)
        for size in [*range(12), len(packed) // 2, *range(len(packed) - 10, len(packed))]:
            with pytest.raises(ShardError):
                unpack(tmp_path, compression, packed[:size], len(_DATA))
            with pytest.raises(ShardError):
                decompress(compression, packed[:size])

    def test_damaged_files_give_the_size_or_an_error(self, compression: str, tmp_path: Path) -> None:
        draw = random.Random(1)
        for _ in range(100):
            data = draw.randbytes(draw.randrange(300))
            packed = bytearray(compress(compression, data))
            packed[draw.randrange(len(packed))] = draw.randrange(256)
            with contextlib.suppress(ShardError):
                assert len(unpack(tmp_path, compression, bytes(packed), len(data))) == len(data)

    def test_a_bomb_is_refused_before_it_fills_memory_or_disk(self, compression: str, tmp_path: Path) -> None:
        packed = compress(self.quick(compression), bytes(256 << 20))
        tracemalloc.start()
        try:
            for limit in (0, 400, 1 << 20):
                with pytest.raises(ShardError, match='holds'):
                    unpack(tmp_path, compression, packed, limit)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < (48 << 20) + 2 * len(packed)

    def test_shards_and_indexes_hold_it(self, compression: str, tmp_path: Path) -> None:
        encoder = MDSEncoder({'number': 'int', 'text': 'str'}, compression=self.quick(compression))
        for number in range(100):
            encoder.add({'number': number, 'text': 'x' * number})
        (shard,) = encoder.finish()
        ((name, packed),) = shard.files
        assert name.endswith(f'.mds.{compression}')
        (info,) = parse_index(dump_index([shard.info]), source='test')
        raw = unpack(tmp_path, info.compression or '', packed, info.files[0].raw.bytes)
        assert raw.endswith(b'x' * 99)
