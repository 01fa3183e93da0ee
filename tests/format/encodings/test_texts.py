"""Text, numbers as text, and JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FormatError
from headrace.format.encodings.registry import mds_decode, mds_encode


@given(st.text(), st.integers(), st.floats(allow_nan=False), st.decimals(allow_nan=False))
def test_texts_and_numbers_as_text(text: str, integer: int, number: float, decimal: Decimal) -> None:
    for name, obj in (('str', text), ('str_int', integer), ('str_float', number), ('str_decimal', decimal)):
        back = mds_decode(name, memoryview(mds_encode(name, obj)))
        assert back == obj
        assert str(back) == str(obj)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_json_values(obj: Any) -> None:
    assert mds_decode('json', mds_encode('json', obj)) == obj


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(FormatError, match='nested too deeply'):
        mds_decode('json', b'[' * 200_000)
