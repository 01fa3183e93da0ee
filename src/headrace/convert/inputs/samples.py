"""Samples of a user's program, and the encodings that fit them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from headrace.dataset.writing.columns import infer_columns

__all__ = ['ENOUGH', 'classes_file', 'columns_of', 'to_sample']

ENOUGH: Final = 16
"""Samples that tell the columns."""


def to_sample(found: object, names: Sequence[str]) -> Mapping[str, Any]:
    """The columns of a value that a program yields, with tensors as arrays.

    Args:
        found: a mapping from column to value, or a tuple of values.
        names: the columns of a tuple.

    Raises:
        TypeError: it is something else; or the tuple has another length.
    """
    if isinstance(found, Mapping):
        sample = cast('Mapping[str, Any]', found)
        return {name: _plain(value) for name, value in sample.items()}
    if isinstance(found, tuple) and len(cast('tuple[Any, ...]', found)) == len(names):
        values = cast('tuple[Any, ...]', found)
        return {name: _plain(value) for name, value in zip(names, values, strict=True)}
    of_names = f'or a tuple of {len(names)} values for {list(names)}'
    raise TypeError(
        f'A sample is a mapping from column to value, {of_names if names else "or a tuple"}, but is '
        f"{type(found).__name__}: {found!r:.100}. Name the values of tuples as in columns=['image', 'label']."
    )


def _plain(value: Any) -> Any:
    """A tensor as an array, one without axes as a number; everything else as it is."""
    if not hasattr(value, 'detach'):
        return value
    return value.item() if value.dim() == 0 else value.detach().cpu().numpy()


def columns_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The encodings that suit samples. Arrays get a fixed shape only if enough samples have it.

    Raises:
        ConfigError: no encoding suits a value, or the samples have different keys.
    """
    found = infer_columns(samples)
    if len(samples) >= ENOUGH:
        return found
    return {name: ':'.join(encoding.split(':')[:2]) for name, encoding in found.items()}


def classes_file(names: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, bytes]:
    """The file with the names of classes, by number; of several columns, by column. None if there are no names."""
    return {'classes.json': json.dumps(names, ensure_ascii=False, indent=1).encode('utf-8', 'replace')} if names else {}
