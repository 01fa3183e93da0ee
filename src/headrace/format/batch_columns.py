"""The columns of a batch of samples that are to be encoded, and the place of a bad value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from headrace.format.encodings.arrays import unmasked
from headrace.notes import add_note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ['as_sequence', 'common_length', 'name_place', 'python_values']

_PLAIN_ERRORS: Final = (AttributeError, TypeError, ValueError, OverflowError)


def name_place(error: Exception, place: str) -> None:
    """Prefix an encoding's message with a place, or note the place on another error."""
    if type(error) in _PLAIN_ERRORS and len(error.args) == 1:
        error.args = (f'{place}: {error.args[0]}',)
    else:
        add_note(error, f'While encoding {place[0].lower()}{place[1:]}.')


def as_sequence(name: str, values: Any) -> Sequence[Any]:
    """The values of a column as a list or an array; tensors and the like say how they become arrays.

    Raises:
        ValueError: they are an array with masked values.
        TypeError: they are one text, or become no list or array.
    """
    try:
        if isinstance(values, np.ma.MaskedArray):
            return cast('Sequence[Any]', unmasked(values))
        if isinstance(values, list | tuple | np.ndarray):
            return cast('Sequence[Any]', values)
        if hasattr(values, '__array__'):
            return cast('Sequence[Any]', np.asarray(values))
        if not isinstance(values, str | bytes):
            return list(values)
    except Exception as error:
        name_place(error, f'Column {name!r}')
        raise
    raise TypeError(
        f'Column {name!r}: a column of a batch is a list or an array of values, but got one {type(values).__name__}, '
        f'{values[:60]!r}. Put it into a list.'
    )


def common_length(columns: Mapping[str, Sequence[Any]]) -> int:
    """The number of values of each column of a batch.

    Raises:
        ValueError: the columns differ in length.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f'The columns of a batch have equally many values, but got {lengths}. Nothing was added.')
    return next(iter(lengths.values()), 0)


def python_values(values: Sequence[Any]) -> Sequence[Any]:
    """The values of a column one by one: Python objects of an array with one axis, else its rows."""
    if isinstance(values, np.ndarray):
        return values.tolist() if values.ndim == 1 else list(values)
    return values
