"""Encodings and compressions of one's own: registered from outside, held to the contracts, refused where they clash."""

from __future__ import annotations

import lzma
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError, FormatError, ShardError
from headrace.format import (
    Compression,
    Encoding,
    MDSEncoder,
    dump_index,
    get_compressions,
    is_compression,
    mds_decode,
    mds_encode,
    parse_index,
    register_compression,
    register_encoding,
)
from headrace.format.compression import ALGORITHMS
from headrace.format.encodings.encoding import ENCODINGS
from headrace.format.encodings.scalars import UInt8
from headrace.testing.compressions import CompressionContract
from headrace.testing.encodings import EncodingCase, EncodingContract


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Encodings that a test registers are removed at its end."""
    encodings, algorithms = dict(ENCODINGS), dict(ALGORITHMS)
    register_encoding('test-reversed', encode=reverse, decode=restore)
    register_encoding('test-point', encode=pack_point, decode=unpack_point, size=8)
    register_encoding('test-vector', Vector())
    register_compression('xz', XZ)
    yield
    for table, before in ((ENCODINGS, encodings), (ALGORITHMS, algorithms)):
        table.clear()
        table.update(before)
    register_encoding('str', ENCODINGS['str'])  # forgets what was looked up


def reverse(text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f'takes text, but got {text!r}')
    return text[::-1].encode()


def restore(data: bytes) -> str:
    return data.decode()[::-1]


def pack_point(point: tuple[int, int]) -> bytes:
    x, y = point
    try:
        return struct.pack('<ii', x, y)
    except struct.error as error:
        raise ValueError(str(error)) from None


def unpack_point(data: bytes) -> tuple[int, int]:
    return struct.unpack('<ii', data)


class Vector(Encoding):
    """`test-vector:N`: N half-precision numbers."""

    def __init__(self, length: int | None = None) -> None:
        if length is not None:
            self.size, self.array_type = 2 * length, (np.dtype('<f2'), (length,))

    def with_parameters(self, text: str) -> Vector:
        if not text.isdecimal() or not 0 < int(text) < 1000:
            raise ConfigError(f'`test-vector` takes a length from 1 to 999, but got {text!r}.')
        return Vector(int(text))

    def encode(self, obj: Any) -> bytes:
        data = np.asarray(obj, '<f2').tobytes()
        if not data or self.size not in (None, len(data)):
            raise ValueError(f'takes {self.size} bytes, but got {len(data)}')
        return data

    def decode(self, data: Any) -> Any:
        if not len(data) or len(data) % 2 or self.size not in (None, len(data)):
            raise FormatError(f'A vector of {self.size} bytes cannot have {len(data)}.')
        return np.frombuffer(data, '<f2').copy()


class XZ(Compression):
    """lzma, of the standard library."""

    levels, default_level = [0, 6], 6

    def compress(self, data: bytes) -> bytes:
        return lzma.compress(data, preset=self.level)

    def stream(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        decoder = lzma.LZMADecompressor()
        for chunk in chunks:
            if decoder.eof:
                raise ShardError('Something follows the data.')
            yield decoder.decompress(chunk, 1 << 18)
            while not decoder.needs_input and not decoder.eof:
                yield decoder.decompress(b'', 1 << 18)
        if not decoder.eof or decoder.unused_data:
            raise ShardError('The file ends too early, or something follows it.')

    def errors(self) -> tuple[type[Exception], ...]:
        return (lzma.LZMAError,)


CASES = [
    EncodingCase('test-reversed', ('abc', ''), (b'abc', 1)),
    EncodingCase('test-point', ((1, -2), (0, 7)), ((1,), (1 << 40, 0), None)),
    EncodingCase('test-vector', ([1.0], [2.0, 3.0]), ([], 'x')),
    EncodingCase('test-vector:3', ([1.0, 2.0, 3.0], [0.0, 0.5, 1.0]), ([1.0], 'x')),
]


class TestRegisteredEncodings(EncodingContract):
    @pytest.fixture(params=CASES, ids=lambda case: case.name)
    def case(self, request: pytest.FixtureRequest) -> EncodingCase:
        return request.param


class TestRegisteredCompression(CompressionContract):
    @pytest.fixture
    def compression(self) -> str:
        return 'xz'


def test_methods_of_built_in_types_encode() -> None:
    register_encoding('test-text', encode=str.encode, decode=bytes.decode)
    register_encoding('test-text', encode=str.encode, decode=bytes.decode)
    assert mds_decode('test-text', mds_encode('test-text', 'ä')) == 'ä'


def test_a_registered_encoding_is_one_of_the_names_that_errors_list() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'test-point'.*test-reversed.*calls register_encoding"):
        mds_encode('test-pont', (1, 2))
    with pytest.raises(ConfigError, match='`test-point` takes no parameters'):
        mds_encode('test-point:3', (1, 2))
    with pytest.raises(ConfigError, match='takes a length from 1 to 999'):
        mds_encode('test-vector:x', [1.0])


def test_errors_of_a_function_that_decodes_name_the_encoding() -> None:
    with pytest.raises(FormatError, match=r'`test-point` \(3 bytes\) cannot be decoded: error: unpack requires'):
        mds_decode('test-point', b'abc')


def test_a_function_that_encodes_returns_bytes() -> None:
    register_encoding('test-text', encode=str, decode=str)
    with pytest.raises(TypeError, match='`encode` of encoding `test-text` returns bytes, but returned a str'):
        mds_encode('test-text', 1)


def test_a_value_of_another_size_than_the_fixed_one_is_refused() -> None:
    register_encoding('test-fixed', encode=lambda obj: bytes(obj), decode=len, size=3)
    with pytest.raises(ValueError, match=r"Sample 0, column 'x': A value has 3 bytes, but got 2 bytes"):
        MDSEncoder({'x': 'test-fixed'}).add({'x': 2})


def test_a_module_that_runs_again_registers_again_and_another_is_refused() -> None:
    register_encoding('test-point', encode=pack_point, decode=unpack_point, size=8)
    register_compression('xz', XZ)
    with pytest.raises(ConfigError, match=r"registered once, but 'test-point' is that of .*pack_point already"):
        register_encoding('test-point', Vector)
    with pytest.raises(ConfigError, match=r"registered once, but 'str' is that of headrace\.format\.encodings\."):
        register_encoding('str', UInt8)
    with pytest.raises(ConfigError, match=r"registered once, but 'gz' is that of headrace\.format\..*Gzip already"):
        register_compression('gz', type('Mine', (XZ,), {}))


@pytest.mark.parametrize('name', ['', 'a:b', '1a', 'a b', 'x' * 65, 'ü'])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match='begins with a letter'):
        register_encoding(name, Vector)
    with pytest.raises(ConfigError, match='a letter and at most 15'):
        register_compression(name, XZ)


def test_an_encoding_is_a_class_or_two_functions() -> None:
    for given in ({}, {'encode': str}, {'encoding': Vector, 'decode': str}):
        with pytest.raises(ConfigError, match='either an encoding, or both `encode` and `decode`'):
            register_encoding('test-other', **given)


def test_a_compression_has_the_name_of_its_extension() -> None:
    with pytest.raises(ConfigError, match=r"has 'xz' and is given the name 'xzz'"):
        register_compression('xzz', XZ)
    assert {'xz', 'xz:0', 'xz:6'} <= get_compressions()
    assert not is_compression('xz:3')


def test_an_index_with_an_encoding_that_nobody_registered_says_how_to() -> None:
    encoder = MDSEncoder({'x': 'test-point'}, compression='xz')
    encoder.add({'x': (1, 2)})
    (shard,) = encoder.finish()
    program = f"""
from headrace.format import parse_index
try:
    parse_index({dump_index([shard.info])!r}, source='index.json')
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    assert "column 'x': 'test-point' is not an encoding" in done.stdout
    assert 'import the module that calls register_encoding' in done.stdout
    assert parse_index(dump_index([shard.info]), source='index.json')[0].schema.encodings == ('test-point',)


@pytest.mark.parametrize(
    'functions',
    [
        {'encode': pickle.dumps, 'decode': pickle.loads},
        {'encode': lambda value: pickle.dumps(value), 'decode': lambda data: pickle.loads(data), 'runs_code': True},
    ],
)
def test_functions_that_run_code_are_asked_for(functions) -> None:
    register_encoding('test-runs', **functions)
    encoder = MDSEncoder({'x': 'test-runs'})
    encoder.add({'x': [1.0]})
    (shard,) = encoder.finish()
    with pytest.raises(ValueError, match='unsafe type'):
        parse_index(dump_index([shard.info]), source='index.json')


def test_another_lambda_of_the_same_module_is_refused() -> None:
    register_encoding('test-lambda', encode=lambda text: text.encode(), decode=bytes.decode)
    with pytest.raises(ConfigError, match='registered once'):
        register_encoding('test-lambda', encode=lambda text: text.encode('ascii'), decode=bytes.decode)


def test_encodings_that_run_code_are_asked_for() -> None:
    class Runs(Vector):
        trusted_name = False

    register_encoding('test-runs', Runs)
    encoder = MDSEncoder({'x': 'test-runs'})
    encoder.add({'x': [1.0]})
    (shard,) = encoder.finish()
    with pytest.raises(ValueError, match='unsafe type'):
        parse_index(dump_index([shard.info]), source='index.json')
