"""Sizes and counts as text: ``'64mb'`` is a number of bytes, ``'1.5b'`` a number of samples."""

from __future__ import annotations

from typing import Any, Final, SupportsInt

from headrace.errors import ConfigError

_BYTE_UNITS: Final = {
    unit: 1024**power for power, unit in enumerate(('kb', 'mb', 'gb', 'tb', 'pb', 'eb', 'zb', 'yb'), 1)
}
_COUNT_UNITS: Final = {'k': 10**3, 'm': 10**6, 'b': 10**9, 't': 10**12}


def _scaled(number: str, factor: int) -> int | None:
    """``number`` times ``factor``, truncated as a float product; None if ``number`` is not a finite number."""
    try:
        return int(float(number) * factor)
    except (ValueError, OverflowError):
        return None


def _whole(text: str) -> int | None:
    # Digits only: int() also accepts signs, inner underscores and spaces.
    if not text.isdecimal():
        return None
    try:
        return int(text)
    except ValueError:  # more digits than Python converts
        return None


def bytes_to_int(bytes_str: int | float | str) -> int:
    """A number of bytes from a number or from text such as ``'100'``, ``'100b'``, ``'64mb'``, ``'1.5gb'``.

    Units are powers of 1024, from kb to yb. Case and outer spaces do not matter.

    Raises:
        ConfigError: it is not a size.
    """
    if not isinstance(bytes_str, str):
        return _number(bytes_str, 'A size', "'64mb'")
    text = bytes_str.strip().lower()
    factor = _BYTE_UNITS.get(text[-2:])
    value = _scaled(text[:-2], factor) if factor else _whole(text.removesuffix('b'))
    if value is None:
        raise ConfigError(
            f"A size in bytes is a whole number, or a number with one of {', '.join(_BYTE_UNITS)}, such as '64mb'; "
            f'but got {bytes_str[:60]!r}.'
        )
    return value


def number_abbrev_to_int(abbrev_str: int | float | str) -> int:
    """A count from a number or from text such as ``'100'``, ``'100k'``, ``'64M'``, ``'1.5b'``, ``'1t'``.

    Units are powers of 1000. Case and outer spaces do not matter.

    Raises:
        ConfigError: it is not a count.
    """
    if not isinstance(abbrev_str, str):
        return _number(abbrev_str, 'A count', "'1.5b'")
    text = abbrev_str.strip().lower()
    factor = _COUNT_UNITS.get(text[-1:])
    value = _scaled(text[:-1], factor) if factor else _whole(text)
    if value is None:
        raise ConfigError(
            f"A count is a whole number, or a number with one of {', '.join(_COUNT_UNITS)}, such as '1.5b'; "
            f'but got {abbrev_str[:60]!r}.'
        )
    return value


def _number(value: Any, what: str, example: str) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsInt):  # also a NumPy number, which is no `int`
        raise ConfigError(f'{what} is a number, but got {value!r:.200}. Write a number, or a text such as {example}.')
    try:
        return int(value)
    except (ValueError, OverflowError):
        raise ConfigError(f'{what} is a finite number, but got {value}.') from None
