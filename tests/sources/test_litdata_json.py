"""litdata's binary form of lists and dicts."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import scaled
from headrace.errors import FormatError
from headrace.sources.litdata_json import parse_nested

nested = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(nested)
@settings(max_examples=scaled(100), deadline=None)
def test_nested_values(value):
    serializers = pytest.importorskip('litdata.streaming.serializers')
    data, _ = serializers.JsonSerializer().serialize(serializers.JsonLeaf(value))
    assert parse_nested(data) == serializers.JsonSerializer().deserialize(data)


@given(nested, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 20))
@settings(max_examples=scaled(100), deadline=None)
def test_damaged_nested_values(value, edits, end):
    serializers = pytest.importorskip('litdata.streaming.serializers')
    data = bytearray(serializers.JsonSerializer().serialize(serializers.JsonLeaf(value))[0])
    for at, byte in edits:
        data[at % len(data)] = byte
    with contextlib.suppress(FormatError):
        parse_nested(bytes(data[: len(data) - end]))
