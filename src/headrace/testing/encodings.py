"""The contract of MDS encodings, as tests to inherit.

A test class inherits `EncodingContract` and gives it a fixture ``case``. Import the module that registers the encoding.
"""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from headrace.errors import FormatError
from headrace.format import MDSEncoder, ShardInfo, dump_index, open_shard, parse_index
from headrace.format.encodings.registry import get_mds_encoding, get_mds_encodings, is_mds_encoding

__all__ = ['EncodingCase', 'EncodingContract']


@dataclass(frozen=True)
class EncodingCase:
    """An encoding and values to try it with."""

    name: str
    """The name in a column, with parameters."""
    values: tuple[Any, ...]
    """At least two valid values."""
    wrong: tuple[Any, ...]
    """Some invalid values."""


class EncodingContract:
    """Tests of the `Encoding` protocol."""

    def is_same(self, value: Any, back: Any) -> bool:
        """Whether a value came back unchanged; override it for values that `==` does not compare."""
        if isinstance(value, np.ndarray) or isinstance(back, np.ndarray):
            return bool(np.array_equal(value, back))
        return bool(value == back)

    def test_it_is_known_by_name(self, case: EncodingCase) -> None:
        assert is_mds_encoding(case.name)
        assert case.name.partition(':')[0] in get_mds_encodings()
        assert get_mds_encoding(case.name).kind

    def test_values_come_back_from_any_buffer(self, case: EncodingCase) -> None:
        encoding = get_mds_encoding(case.name)
        for value in case.values:
            data = encoding.encode(value)
            assert isinstance(data, bytes)
            for buffer in (data, bytearray(data), memoryview(b'x' + data)[1:]):
                assert self.is_same(value, encoding.decode(buffer))

    def test_a_decoded_value_owns_its_memory(self, case: EncodingCase) -> None:
        encoding = get_mds_encoding(case.name)
        for value in case.values:
            buffer = bytearray(encoding.encode(value))
            back = encoding.decode(memoryview(buffer))
            buffer[:] = bytes(len(buffer))
            assert self.is_same(value, back)
            buffer.append(0)  # a BufferError, if the value still refers to the buffer

    def test_values_have_the_fixed_size(self, case: EncodingCase) -> None:
        encoding = get_mds_encoding(case.name)
        if encoding.size is not None:
            assert encoding.size > 0
            assert {len(encoding.encode(value)) for value in case.values} == {encoding.size}
            for wrong_size in (0, encoding.size - 1, encoding.size + 1):
                with pytest.raises(FormatError):
                    encoding.decode(bytes(wrong_size))

    def test_the_array_type_says_what_decode_gives(self, case: EncodingCase) -> None:
        encoding = get_mds_encoding(case.name)
        if encoding.array_type is not None:
            dtype, shape = encoding.array_type
            assert encoding.size == np.empty(shape, dtype).nbytes
            for value in case.values:
                array = np.ndarray(shape, dtype, encoding.encode(value))
                assert np.array_equal(array, encoding.decode(array.tobytes()))

    def test_wrong_values_are_refused(self, case: EncodingCase) -> None:
        for value in case.wrong:
            with pytest.raises((AttributeError, TypeError, ValueError, OverflowError)):
                get_mds_encoding(case.name).encode(value)

    def test_damaged_values_are_an_error_of_the_format_or_another_value(self, case: EncodingCase) -> None:
        encoding, draw = get_mds_encoding(case.name), random.Random(0)
        for value in case.values if encoding.trusted_name else ():  # a damaged pickle may run anything
            data = encoding.encode(value)
            cut = [data[:size] for size in {0, 1, len(data) // 2, max(0, len(data) - 1)}]
            flipped = [bytearray(data) for _ in range(16)] if data else []
            for damaged in flipped:
                damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            for damaged in (*cut, *flipped, data + b'x', draw.randbytes(40)):
                with contextlib.suppress(FormatError):
                    encoding.decode(damaged)

    def test_many_threads_may_use_it(self, case: EncodingCase) -> None:
        encoding = get_mds_encoding(case.name)

        def round_trip(value: Any) -> bool:
            return self.is_same(value, encoding.decode(encoding.encode(value)))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(round_trip, case.values * 20))

    @pytest.mark.parametrize('beside', [{}, {'number': 'int'}, {'text': 'str'}], ids=['alone', 'an int', 'a text'])
    def test_shards_hold_it(self, case: EncodingCase, beside: dict[str, str]) -> None:
        values = (case.values * 8)[:8]
        encoder = MDSEncoder({'value': case.name, **beside})
        for number, value in enumerate(values):
            assert encoder.add({'value': value, 'number': number, 'text': 'x' * number}) == []
        (shard,) = encoder.finish()
        trusts = {'allow_unsafe_types': not get_mds_encoding(case.name).trusted_name}
        (info,) = parse_index(dump_index([shard.info]), source='test', **trusts)
        assert isinstance(info, ShardInfo)
        reader = open_shard(info, [memoryview(shard.files[0][1])], source='test')
        for rows in ([5, 2], [7, 0, 3, 1, 6, 2]):  # few rows, and many
            batch = info.schema.allocate(len(rows))
            reader.gather(np.array(rows), np.arange(len(rows)), batch)
            for row, value in zip(rows, batch.columns['value'], strict=True):
                assert self.is_same(values[row], value)
                assert self.is_same(values[row], reader.sample(row)['value'])
