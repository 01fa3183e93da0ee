"""Sizes and counts as text."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.format import bytes_to_int, number_abbrev_to_int
from tests.support.formats.format_golden import SHARED, VENDORED, load

SOURCE = SHARED / 'pure' / 'parse_sizes.json'
CASES = load(SOURCE if SOURCE.is_file() else VENDORED / 'parse_sizes.json')['cases']
FUNCTIONS: dict[str, Any] = {'bytes_to_int': bytes_to_int, 'number_abbrev_to_int': number_abbrev_to_int}


@pytest.mark.parametrize('case', CASES, ids=lambda case: f'{case["args"]["function"]}-{case["args"]["text"]}')
def test_vectors(case: dict[str, Any]) -> None:
    function = FUNCTIONS[case['args']['function']]
    if 'raises' in case:
        with pytest.raises(ValueError):
            function(case['args']['text'])
    else:
        value = function(case['args']['text'])
        assert value == case['value']
        assert type(value) is int


def test_documented_values() -> None:
    assert bytes_to_int('100kb') == 102400
    assert bytes_to_int(' 1.5GB ') == 3 << 29
    assert bytes_to_int(7.9) == bytes_to_int(7) == 7
    assert number_abbrev_to_int('64M') == 64_000_000
    assert number_abbrev_to_int('1.5b') == 1_500_000_000
    assert number_abbrev_to_int('1t') == 10**12
    assert number_abbrev_to_int(7.9) == 7


@pytest.mark.parametrize('text', ['', 'b', 'k', 'kb', 'infkb', 'nank', '1e400mb', '-5', '+5', '1 2', '9' * 5000])
@pytest.mark.parametrize('function', FUNCTIONS.values())
def test_wrong_texts(function: Any, text: str) -> None:
    with pytest.raises(ConfigError, match='but got'):
        function(text)


@pytest.mark.parametrize('function', FUNCTIONS.values())
@pytest.mark.parametrize('number', [float('inf'), float('nan')])
def test_numbers_that_are_none(function: Any, number: float) -> None:
    with pytest.raises(ConfigError):
        function(number)


@given(st.text(max_size=10), st.sampled_from(list(FUNCTIONS.values())))
def test_any_text_is_a_number_or_refused(text: str, function: Any) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(function(text), int)
