"""Sizes and counts as text: ``'64mb'`` is a number of bytes, ``'1.5b'`` a number of samples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final, SupportsInt

from headrace.errors import ConfigError

_BYTE_UNITS: Final = {
    unit: 1024**power for power, unit in enumerate(('kb', 'mb', 'gb', 'tb', 'pb', 'eb', 'zb', 'yb'), 1)
}
_COUNT_UNITS: Final = {'k': 10**3, 'm': 10**6, 'b': 10**9, 't': 10**12}


def bytes_to_int(bytes_str: int | float | str) -> int:
    """A number of bytes from a number or from text such as ``'100'``, ``'100b'``, ``'64mb'``, ``'1.5gb'``.

    Units are powers of 1024, from kb to yb. Case and outer spaces do not matter.

    Raises:
        ConfigError: it is not a size.
    """
    if not isinstance(bytes_str, str):
        return _number(bytes_str, 'A size', "'64mb'")
    return _parsed(bytes_str, _BYTE_UNITS, 'b', 'A size in bytes', "'64mb'")


def number_abbrev_to_int(abbrev_str: int | float | str) -> int:
    """A count from a number or from text such as ``'100'``, ``'100k'``, ``'64M'``, ``'1.5b'``, ``'1t'``.

    Units are powers of 1000. Case and outer spaces do not matter.

    Raises:
        ConfigError: it is not a count.
    """
    if not isinstance(abbrev_str, str):
        return _number(abbrev_str, 'A count', "'1.5b'")
    return _parsed(abbrev_str, _COUNT_UNITS, '', 'A count', "'1.5b'")


def _parsed(given: str, units: Mapping[str, int], base: str, what: str, example: str) -> int:
    """The number of a text with a unit, truncated as a float product; or of digits, with the name of the base unit."""
    text = given.strip().lower()
    unit = next((unit for unit in units if text.endswith(unit)), '')
    with contextlib.suppress(ValueError, OverflowError):  # also more digits than Python converts
        if unit:
            return int(float(text.removesuffix(unit)) * units[unit])
        digits = text.removesuffix(base)
        if digits.isdecimal():  # int() also accepts signs, inner underscores and spaces
            return int(digits)
    raise ConfigError(
        f'{what} is a whole number, or a number with one of {", ".join(units)}, such as {example}; but got '
        f'{given[:60]!r}.'
    )


def _number(value: Any, what: str, example: str) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsInt):  # also a NumPy number, which is not an `int`
        raise ConfigError(f'{what} is a number, but got {value!r:.200}. Write a number, or a text such as {example}.')
    try:
        return int(value)
    except (ValueError, OverflowError):
        raise ConfigError(f'{what} is a finite number, but got {value}.') from None
