"""Columns by the thousand give the shards that the same samples give one by one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.format import Encoding, JSONEncoder, MDSEncoder, XSVEncoder
from headrace.format.encodings.encoding import ENCODINGS
from tests.support.suite.example_counts import scaled

TEXTS = st.text(max_size=8)


def arrays(dtype: str, *shape: int) -> Any:
    count = int(np.prod(shape))
    numbers = st.lists(st.integers(0, 100), min_size=count, max_size=count)
    return numbers.map(lambda values: np.array(values, dtype).reshape(shape))


# Values of a column's encoding as a row has them, and the forms in which a column may hold them.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    'int': st.integers(-(2**63), 2**63 - 1) | st.booleans(),
    'uint8': st.integers(0, 255),
    'int16': st.integers(-300, 300) | st.integers(-9, 9).map(float),
    'uint64': st.integers(0, 2**64 - 1),
    'float32': st.floats(width=32) | st.floats(-1e30, 1e30) | st.integers(-(2**60), 2**60),
    'float16': st.floats(width=16) | st.floats(-6e4, 6e4),
    'str': TEXTS | TEXTS.map(str.encode),
    'bytes': st.binary(max_size=8),
    'json': st.lists(st.integers(), max_size=2) | TEXTS,
    'str_int': st.integers(),
    'ndarray': arrays('<i2', 2) | arrays('>f4', 1, 2),
    'ndarray:uint16': arrays('u2', 3) | arrays('u2', 1, 300),
    'ndarray:float64:2,1': arrays('f8', 2, 1),
}
FORMS: dict[str, st.SearchStrategy[Any]] = {
    'int': st.sampled_from(['i1', 'u4', 'i8', '?']),
    'uint8': st.sampled_from(['u1', '>i4', '?']),
    'int16': st.sampled_from(['u1', 'i8']),
    'uint64': st.sampled_from(['u8', 'i8']),
    'float32': st.sampled_from(['f4', '>f8', 'i8', 'f2']),
    'float16': st.sampled_from(['f8', 'u1']),
    'str': st.sampled_from(['U', 'O']),
    'str_int': st.sampled_from(['u8', 'O']),
    'ndarray': st.sampled_from(['<i2', '>f4', 'f8']),
    'ndarray:uint16': st.just('u2'),
    'ndarray:float64:2,1': st.just('f8'),
}


@st.composite
def columns_of_values(draw: Any, encoding: str, count: int) -> tuple[Any, list[Any]]:
    """A column as `add_batch` takes it, and its values as `add` does."""
    if encoding not in FORMS or draw(st.booleans()):
        values = draw(st.lists(VALUES[encoding], min_size=count, max_size=count))
        return draw(st.sampled_from([list, tuple, iter]))(values) if count else values, values
    dtype = draw(FORMS[encoding])
    shape = {'ndarray:float64:2,1': (2, 1), 'ndarray': (3,), 'ndarray:uint16': (300, 1)}.get(encoding, ())
    if dtype in 'UO':
        values = [draw(TEXTS if encoding == 'str' else st.integers()) for _ in range(count)]
        array = np.array(values, dtype)  # of type U it drops NULs at the end of a text
        return array, [str(value) if encoding == 'str' else value for value in array.tolist()]
    array = np.array([draw(st.integers(0, 1)) + i for i in range(count)], np.dtype(dtype))
    array = np.broadcast_to(array.reshape(count, *(1 for _ in shape)), (count, *shape))
    return array, list(array) if shape else array.tolist()


@st.composite
def batches(draw: Any) -> tuple[dict[str, str], list[tuple[dict[str, Any], list[dict[str, Any]]]]]:
    names = draw(st.lists(st.sampled_from('abcd'), unique=True, min_size=1))
    schema = {name: draw(st.sampled_from(sorted(VALUES))) for name in names}
    found = []
    for count in draw(st.lists(st.integers(0, 12), max_size=4)):
        both = {name: draw(columns_of_values(encoding, count)) for name, encoding in schema.items()}
        columns = {name: column for name, (column, _) in both.items()}
        rows = [{name: values[i] for name, (_, values) in both.items()} for i in range(count)]
        found.append((columns, rows))
    return schema, found


@settings(max_examples=scaled(250))
@given(batches(), st.none() | st.integers(1, 900), st.lists(st.booleans(), min_size=4, max_size=4))
def test_batches_and_samples_make_the_same_shards(made: Any, size_limit: int | None, alone: list[bool]) -> None:
    schema, found = made
    batched, single = (MDSEncoder(schema, size_limit=size_limit, hashes=['xxh64']) for _ in range(2))
    ours, theirs = [], []
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for (columns, rows), is_alone in zip(found, alone, strict=False):
            theirs += [shard for row in rows for shard in single.add(row)]
            ours += [shard for row in rows for shard in batched.add(row)] if is_alone else batched.add_batch(columns)
    assert ours + batched.finish() == theirs + single.finish()


@settings(max_examples=scaled(60))
@given(
    st.lists(st.tuples(st.integers(), TEXTS.map(lambda text: ''.join(filter(str.isalnum, text))), st.floats())),
    st.sampled_from(['json', 'csv', 'xsv']),
    st.none() | st.integers(1, 200),
)
def test_batches_of_lines(rows: list[Any], kind: str, size_limit: int | None) -> None:
    def encoder() -> Any:
        columns = {'n': 'int', 't': 'str', 'x': 'float'}
        if kind == 'json':
            return JSONEncoder(columns, size_limit=size_limit)
        return XSVEncoder(columns, shard_format=kind, separator='|', size_limit=size_limit)

    single, batched = encoder(), encoder()
    theirs = [shard for row in rows for shard in single.add(dict(zip('ntx', row, strict=True)))] + single.finish()
    numbers, texts, floats = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {'n': numbers, 't': texts, 'x': np.array(floats, np.float64), 'ignored': ()}
    assert batched.add_batch(columns) + batched.finish() == theirs


REFUSED = [
    ({'a': [1, 'x', 3], 'b': ['', '', '']}, AttributeError, r"Sample 2, column 'a'"),
    ({'a': np.array([1, 2**63], np.uint64), 'b': ['', '']}, OverflowError, r"Sample 2, column 'a'"),
    ({'a': np.array([1.0, 2.0]), 'b': ['', '']}, AttributeError, r"Sample 1, column 'a'"),
    ({'a': [1, 2], 'b': ['', '\ud800']}, ValueError, r"Sample 2, column 'b': .* half a surrogate pair"),
    ({'a': [1, 2], 'b': ['', 3]}, AttributeError, r"Sample 2, column 'b'"),
    ({'a': [b'12345678', b'1'], 'b': ['', '']}, ValueError, r"Sample 2, column 'a': A value has 8 bytes"),
    ({'a': [1, 2], 'b': ['']}, ValueError, r"equally many values, but got \{'a': 2, 'b': 1\}"),
    ({'a': [1, 2]}, KeyError, "lacks .'b'."),
]


@pytest.mark.parametrize(('columns', 'error', 'message'), REFUSED)
def test_a_batch_with_a_bad_value_adds_nothing(columns: Any, error: Any, message: str) -> None:
    encoder = MDSEncoder({'a': 'int', 'b': 'str'})
    encoder.add({'a': 7, 'b': 'x'})
    with pytest.raises(error, match=message):
        encoder.add_batch(columns)
    (shard,) = encoder.finish()
    assert shard.info.samples == 1


def test_a_batch_never_passes_32_bit_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('headrace.format.encoder.MAX_OFFSET', 1000)
    for size_limit in (None, 500):
        encoder = MDSEncoder({'a': 'bytes'}, size_limit=size_limit)
        with pytest.raises(ValueError, match='smaller than 4 GiB.* sample 2 of'):
            encoder.add_batch({'a': [b'', b'', bytes(900)]})
        assert encoder.finish() == []


def test_a_batch_may_be_changed_after_the_call() -> None:
    tokens = np.arange(12).reshape(3, 4)
    encoder, other = (MDSEncoder({'tokens': 'ndarray:int64:4'}) for _ in range(2))
    encoder.add_batch({'tokens': tokens})
    other.add_batch({'tokens': tokens.copy()})
    tokens[:] = 0
    assert encoder.finish() == other.finish()


def test_tensors_and_encodings_of_fixed_size_without_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip('torch')

    class Pair(Encoding):
        size = 2

        def encode(self, obj: Any) -> bytes:
            return bytes(obj)

        def decode(self, data: Any) -> Any:
            return tuple(data)

    monkeypatch.setitem(ENCODINGS, 'test-pair', Pair())
    schema = {'pair': 'test-pair', 'tokens': 'ndarray:int64', 'x': 'float32'}
    batched, single = MDSEncoder(schema), MDSEncoder(schema)
    tokens, x = torch.arange(6).reshape(3, 2), torch.rand(3)
    batched.add_batch({'pair': [(1, 2)] * 3, 'tokens': tokens, 'x': x})
    for i in range(3):
        single.add({'pair': (1, 2), 'tokens': tokens[i].numpy(), 'x': float(x[i])})
    assert batched.finish() == single.finish()
