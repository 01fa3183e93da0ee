"""The columns of a loader that are padded to tensors: settings of Python and YAML."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from headrace.errors import ConfigError
from headrace.selection import Mistake
from headrace.selection.predicate import read_given

_RULE: Final = 'must be a mapping from columns to the value that fills them up, such as {tokens: 0}'
_KEYS: Final = ('value', 'length', 'mask', 'multiple_of', 'to', 'axis')


@dataclass(frozen=True, kw_only=True)
class PadColumn:
    name: str
    value: int | float  # Fills the places after a row's own.
    length: str | None  # Key of the rows' own lengths, int64[rows]; None to leave them out.
    mask: str | None = None  # Key of bool[rows, longest], True for a row's own places; by default not made.
    multiple_of: int = 1  # The padded length is one of its multiples.
    to: int | None = None  # The padded length; by default that of the longest row of a batch.
    axis: int | None = None
    """Axis of a row whose length differs; None: 0, or the last one for samples of sound."""

    @property
    def added(self) -> tuple[str, ...]:
        """The keys beside the column's own."""
        return tuple(key for key in (self.length, self.mask) if key is not None)


def can_hold(dtype: np.dtype[Any], value: float) -> bool:
    """Whether an array of numbers holds a value, up to the rounding of fractions."""
    try:
        with np.errstate(over='ignore', invalid='ignore'):
            held = np.array(value).astype(dtype)
        return bool(np.isfinite(held) == np.isfinite(float(value)) if dtype.kind == 'f' else held == value)
    except OverflowError:
        return False


def length_key(column: str) -> str:
    return f'{column}_length'


@dataclass(frozen=True)
class Pad:
    columns: tuple[PadColumn, ...]

    @classmethod
    def read(cls, raw: object, mistakes: list[Mistake]) -> Pad | None:
        """The value of an argument or a key `pad`; None if there are mistakes, which are added."""
        if isinstance(raw, Pad):
            return raw
        if not isinstance(raw, Mapping) or not raw:
            mistakes.append(Mistake((), raw, _RULE))
            return None
        before, columns, taken = len(mistakes), list[PadColumn](), set[str]()
        for name, given in cast('Mapping[Any, Any]', raw).items():
            if not isinstance(name, str):
                mistakes.append(Mistake((), name, 'must be the name of a column: quote it'))
                continue
            column = _column(name, given, mistakes)
            if column is None:
                continue
            added = column.added
            twice = [key for key in added if key in raw or key in taken or added.count(key) > 1]
            mistakes += [
                Mistake((name,), given, f'adds {key!r} to the batch, which `pad` has already') for key in twice
            ]
            taken.update(column.added)
            columns.append(column)
        return cls(tuple(columns)) if len(mistakes) == before else None

    @classmethod
    def of(cls, raw: object) -> Pad | None:
        """The same for a value given in Python, a ConfigError if it breaks a rule; None if nothing is padded."""
        return read_given('pad', raw, cls.read, ConfigError)

    def with_last_axis(self, names: Collection[str]) -> Pad:
        """These settings, but with the last axis for columns with these names that name none."""
        return Pad(tuple(replace(c, axis=-1) if c.axis is None and c.name in names else c for c in self.columns))

    @property
    def plain(self) -> dict[str, Any]:
        plain = dict[str, Any]()
        for column in self.columns:
            default = PadColumn(name=column.name, value=column.value, length=length_key(column.name))
            keys = {key: getattr(column, key) for key in _KEYS if getattr(column, key) != getattr(default, key)}
            if 'length' in keys:
                keys['length'] = column.length or False
            plain[column.name] = {'value': column.value, **keys} if keys else column.value
        return plain


def _column(name: str, given: object, mistakes: list[Mistake]) -> PadColumn | None:
    raw: Mapping[Any, Any] = cast('Any', given) if isinstance(given, Mapping) else {'value': given}
    before = len(mistakes)

    def refuse(key: str, rule: str) -> None:
        mistakes.append(Mistake((name, key) if raw is given else (name,), raw.get(key), rule))

    for key in raw:
        if key not in _KEYS:
            nearest = difflib.get_close_matches(str(key), _KEYS, n=1)
            refuse(key, f'is no setting; there are {", ".join(_KEYS)}{f": did you mean {nearest[0]}?" * bool(nearest)}')
    values: tuple[Any, ...] = tuple(raw.get(key) for key in _KEYS)
    value, length, mask, multiple_of, to, axis = values
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse('value', 'must be the number that fills the column up')
    keys = {'length': length_key(name), 'mask': f'{name}_mask'}
    for key, given_key in (('length', length), ('mask', mask)):
        if given_key is not None and not isinstance(given_key, bool) and not (isinstance(given_key, str) and given_key):
            refuse(key, f'must be true, for the key {keys[key]!r} of the batch, another key, or false')
    for key, number in (('multiple_of', multiple_of), ('to', to)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            refuse(key, 'must be a whole number of at least 1')
    if to is not None and multiple_of is not None:
        refuse('to', 'is the padded length, so `multiple_of` has no effect; leave one of them out')
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
        refuse('axis', 'must be the number of an axis of a row, from 0; -1 is the last')
    if len(mistakes) > before:
        return None
    return PadColumn(
        name=name,
        value=value,
        length=keys['length'] if length in (None, True) else length or None,
        mask=keys['mask'] if mask is True else mask or None,
        multiple_of=multiple_of or 1,
        to=to,
        axis=axis,
    )
