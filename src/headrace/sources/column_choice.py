"""The columns to read of a dataset."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from headrace.display import printable
from headrace.errors import FormatError, StreamError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ['choose_columns']

_MOST: Final = 32  # columns that a message names


def choose_columns(names: Sequence[str], columns: Collection[str] | None, *, source: str) -> list[str]:
    """The columns to read, in the order of the data.

    Args:
        names: the columns of the data.
        columns: the columns that are asked for; None: all.
        source: the place of the data, for messages.

    Raises:
        FormatError: two columns have one name.
        StreamError: the data lack one of `columns`.
    """
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise FormatError(
            f'The columns of a dataset have different names, but {source} has several columns {twice[0]!r}. Write it '
            f'again with other names.'
        )
    if columns is None:
        return list(names)
    for name in columns:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            meant = f' Did you mean {nearest[0]!r}?' if nearest else ''
            known = printable(', '.join(names[:_MOST]))
            more = f' and {len(names) - _MOST} more' if len(names) > _MOST else ''
            raise StreamError(f'`columns` asks for {name!r}, but {source} has the columns {known}{more}.{meant}')
    return [name for name in names if name in columns]
