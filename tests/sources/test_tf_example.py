"""Examples in any form, read together, beside what protobuf reads of each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources.tf_example import MAX_FEATURES, Examples, FeatureTypes, RecordError
from tests.support.sources.tfrecord_files import entry, example, feature, field, varint
from tests.support.suite.example_counts import scaled

DTYPES = {1: 'bytes', 2: 'float32', 3: 'int64'}


def together(records: Sequence[bytes]) -> Examples:
    data = b'between'.join([b'', *records, b''])
    stops = np.cumsum([len(record) + 7 for record in records])
    return Examples(data, stops - [len(record) for record in records], stops)


def alone(record: bytes) -> dict[str, tuple[int, list[Any]]] | None:
    """The kind and the values of each feature; None: protobuf refuses the record."""
    messages = pytest.importorskip('tfrecord.example_pb2')
    from google.protobuf.message import DecodeError

    try:
        found = messages.Example.FromString(record).features.feature
    except DecodeError:
        return None
    kinds = {'bytes_list': 1, 'float_list': 2, 'int64_list': 3}
    return {
        name: (kinds[which], list(getattr(one, which).value))
        for name, one in found.items()
        if (which := one.WhichOneof('kind')) is not None
    }


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def expected_encoding(values: list[tuple[int, list[Any]] | None]) -> str | None:
    """The encoding of a feature whose values in each record are these."""
    there = [one for one in values if one is not None]
    kinds, counts = {kind for kind, _ in there}, [len(found) for _, found in there]
    if len(there) == len(values) and len(kinds) == 1 and min(counts) > 0:
        dtype = DTYPES[kinds.pop()]
        if max(counts) == 1:
            return dtype
        if dtype != 'bytes':
            return f'ndarray:{dtype}'
    return 'json' if all(is_text(value) for kind, found in there for value in found if kind == 1) else None


def plain(values: Any) -> list[Any]:
    return [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]


def check(records: Sequence[bytes]) -> None:
    models = [alone(record) for record in records]
    known = [model for model in models if model is not None]
    assert len(known) == len(models)
    examples, types = together(records), FeatureTypes()
    types.add(examples)
    encodings = types.encodings()
    names = sorted({name for model in known for name in model})
    assert list(encodings) == names
    for name in names:
        values = [model.get(name) for model in known]
        encoding = expected_encoding(values)
        assert encodings[name] == encoding
        if encoding is None:
            with pytest.raises(RecordError, match='not UTF-8 text|are not'):
                examples.column(name, 'json', is_single=False)
            continue
        lists: list[Any] = [
            None if one is None else [value.decode() if kind_text(one, encoding) else value for value in one[1]]
            for one in values
        ]
        is_single = name in types.singles()
        assert is_single == all(one is None or len(one) < 2 for one in lists)
        if encoding in ('bytes', 'float32', 'int64') or is_single:
            lists = [one[0] if one else None for one in lists]
        np.testing.assert_equal(plain(examples.column(name, encoding, is_single=is_single)), lists)


def kind_text(one: tuple[int, list[Any]], encoding: str) -> bool:
    return one[0] == 1 and encoding == 'json'


numbers = st.one_of(st.integers(-3, 300), st.integers(-(1 << 63), (1 << 63) - 1))
some_bytes = st.one_of(st.binary(max_size=9), st.sampled_from([b'', b'text', 'ä'.encode()]))
lists = st.one_of(
    st.tuples(st.just(1), st.lists(some_bytes, max_size=3)),
    st.tuples(st.just(2), st.lists(st.floats(width=32), max_size=5)),
    st.tuples(st.just(3), st.lists(numbers, max_size=5)),
)
single = st.one_of(
    st.tuples(st.just(1), st.lists(st.binary(max_size=200), min_size=1, max_size=1)),
    st.tuples(st.just(3), st.lists(numbers, min_size=1, max_size=1)),
)
NAMES = ['a', 'image/encoded', 'ä', '', 'label' * 30]


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.one_of(lists, single)), min_size=1, max_size=8))
@settings(max_examples=scaled(50), deadline=None)
def test_any_features(records):
    check([field(1, b''.join(entry(n, feature(v, kind)) for n, (kind, v) in record.items())) for record in records])


def odd_list(draw: Any) -> bytes:
    """A Feature in one of the forms that protobuf reads and no writer gives."""
    kind, values = draw(lists)
    form = draw(st.integers(0, 5))
    half = len(values) // 2
    usual = feature(values, kind)
    return [
        usual,
        feature(values, kind, is_packed=False),
        feature(values[:half], kind) + feature(values[half:], kind, is_packed=False),
        feature([1], 3) + usual,
        usual + field(7, b'unknown') + varint(9 << 3) + varint(5),
        b'',
    ][form]


@st.composite
def odd_records(draw):
    names = draw(st.lists(st.sampled_from(NAMES), max_size=5))  # some twice
    entries = []
    for name in names:
        parts = [field(1, name.encode()), field(2, odd_list(draw))]
        parts += draw(st.sampled_from([[], [], [field(2, feature([5], 3))], [field(1, name.encode())]]))
        entries.append(field(1, b''.join(draw(st.permutations(parts)))))
    half = draw(st.integers(0, len(entries)))
    both = field(1, b''.join(entries[:half])) + field(1, b''.join(entries[half:]))
    return draw(st.sampled_from([field(1, b''.join(entries)), both, both + varint(8 << 3 | 5) + b'1234']))


usual_records = numbers.map(lambda value: example({'a': value}))


@given(st.lists(odd_records() | usual_records, min_size=1, max_size=6))
@settings(max_examples=scaled(50), deadline=None)
def test_any_form(records):
    check(records)


USUAL = example(
    {'image': b'\xff\xd8' * 20, 'label': 5, 'box': [0.5, 0.25], 'words': [b'one', b'two'], 'far': -(1 << 62)}
)


edits_of_it = st.lists(st.tuples(st.integers(0, len(USUAL) - 1), st.binary(min_size=1, max_size=3)), max_size=3)


@given(edits_of_it, st.booleans())
@settings(max_examples=scaled(100), deadline=None)
def test_damaged_records_are_refused_or_read(edits, is_cut):
    record = bytearray(USUAL)
    for at, new in edits:
        record[at : at + len(new)] = new
    damaged = bytes(record[: len(record) // 2] if is_cut else record)
    assert read_all([USUAL, damaged, USUAL]) in (None, 0, 1)  # the first lacks what only the second has


def read_all(records: list[bytes]) -> int | None:
    """The record that is refused, if any is."""
    types = FeatureTypes()
    try:
        examples = together(records)
        types.add(examples)
        for name, encoding in types.encodings().items():
            examples.column(name, encoding or 'jpeg_array', is_single=False)
    except RecordError as error:
        return error.record
    return None


def test_columns_of_declared_types():
    examples = together(
        [example({'i': n, 'f': n / 2, 'b': [b'x'] * n, 't': 'ä'.encode(), 'm': [n] * 6}) for n in (1, 2)]
    )

    def column(name: str, encoding: str) -> Any:
        return plain(examples.column(name, encoding, is_single=False))

    assert column('i', 'int64') == [1, 2]
    assert column('f', 'float32') == [0.5, 1]
    assert column('f', 'ndarray:float32:1') == [[0.5], [1]]
    assert column('b', 'jpeg_array') == [[b'x'], [b'x', b'x']]
    assert column('b', 'json') == [['x'], ['x', 'x']]
    assert column('t', 'str') == ['ä', 'ä']
    assert column('m', 'ndarray:int64:2,3') == [[[1] * 3] * 2, [[2] * 3] * 2]
    assert column('none', 'json') == [None, None]
    assert column('i', 'uint8') == [1, 2]
    assert examples.column('m', 'ndarray:int32', is_single=False)[0].dtype == np.int32


@pytest.mark.parametrize(
    ('name', 'encoding', 'row', 'message'),
    [
        ('i', 'bytes', 0, "has one value of int64 in feature 'i', but its column is `bytes`"),
        ('b', 'bytes', 1, "has none or several values of bytes in feature 'b', but its column is `bytes`"),
        ('b', 'int64', 0, "has one value of bytes in feature 'b'"),
        ('m', 'int64', 1, "has 2 values of int64 in feature 'm', but its column is `int64`"),
        ('m', 'ndarray:int64:2', 0, "has one value of int64 in feature 'm'"),
        ('n', 'uint8', 1, "has 400 in feature 'n', but its column is `uint8`"),
        ('x', 'float32', 0, "has no values in feature 'x'"),
        ('z', 'str', 1, "has bytes in feature 'z' that are not UTF-8 text"),
    ],
)
def test_values_that_contradict_their_column(name, encoding, row, message):
    examples = together(
        [
            example({'i': n, 'b': [b'x'] * n, 'm': [n] * n, 'n': 200 * n, 'z': b'a' if n == 1 else b'\xff'})
            for n in (1, 2)
        ]
    )
    with pytest.raises(RecordError) as raised:
        examples.column(name, encoding, is_single=False)
    assert raised.value.record == row
    assert message in raised.value.reason


def test_many_integers():
    lists = [np.random.default_rng(n).integers(-3, 1 << 20, n * 997).tolist() for n in range(1, 60)]
    examples = together([example({'a': values}) for values in lists])
    assert plain(examples.column('a', 'ndarray:int64', is_single=False)) == lists


def test_only_wanted_features_are_kept():
    record = example({'a': 1, 'b': 2})
    examples = Examples(record, np.array([0]), np.array([len(record)]), wanted=['b'])
    assert list(examples.features) == ['b']


@pytest.mark.parametrize(
    ('record', 'message'),
    [
        (example({'a': 1}) + field(2, b''), 'is a tf.train.SequenceExample'),
        (b'\x0a\x05ab', 'ends too late'),
        (b'\x0b', 'an unknown type'),
        (b'\x0a' + b'\xff' * 11, 'a number of it is incomplete'),
        (field(1, entry('a', field(2, field(1, b'abcde')))), 'its last number is incomplete'),
        (field(1, entry('a', field(3, field(1, b'\x80')))), 'its last number is incomplete'),
        (field(1, entry('a', field(3, field(1, b'\x80') + field(1, b'\1')))), 'its last number is incomplete'),
        (field(1, entry('a', field(3, field(1, b'\xff' * 10 + b'\x01')))), 'an integer has more than 10 bytes'),
        (field(1, field(1, field(1, b'\xff') + field(2, feature([1])))), 'name is not UTF-8'),
        (field(1, field(1, field(1, b'x' * 2000) + field(2, feature([1])))), 'name of more than 1000 bytes'),
        (example({f'f{n}': 1 for n in range(MAX_FEATURES + 1)}), 'more than 1000 features'),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else '',
)
def test_records_that_are_refused(record, message):
    with pytest.raises(RecordError) as raised:
        together([record]).column('a', 'ndarray:int64', is_single=False)
    assert message in raised.value.reason


def test_features_of_all_blocks_are_bounded():
    types = FeatureTypes()
    types.add(together([example({f'f{n}': 1 for n in range(MAX_FEATURES)})]))
    with pytest.raises(RecordError, match='features beyond the 1000'):
        types.add(together([example({'one more': 1})]))
