"""Samples of a user's program, and the encodings that fit them."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from headrace.errors import ConfigError

__all__ = ['infer_columns', 'to_sample']

_PIL_MODES: Final = frozenset({'1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'I', 'I;16'})
"""Modes that PNG stores without loss."""


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


def infer_columns(sample: Mapping[str, Any]) -> dict[str, str]:
    """The encodings with which a sample is read back as it is.

    Raises:
        ConfigError: no encoding fits a value.
    """
    return {name: _encoding_of(name, value) for name, value in sample.items()}


def _encoding_of(name: str, value: Any) -> str:
    kinds: dict[type, str] = {
        bool: 'uint8', int: 'int', float: 'float64', str: 'str', bytes: 'bytes', decimal.Decimal: 'str_decimal',
        dict: 'json', list: 'json', tuple: 'json',
    }  # fmt: skip
    if type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in 'iuf':
        return f'ndarray:{value.dtype.name}'
    if isinstance(value, np.generic) and value.dtype.kind in 'iufb':
        return 'uint8' if value.dtype.kind == 'b' else value.dtype.name
    if isinstance(value, str):
        return 'str'
    mode = getattr(value, 'mode', None)
    if hasattr(value, 'tobytes') and hasattr(value, 'getbands') and isinstance(mode, str):
        return 'png' if mode in _PIL_MODES else 'pil'
    raise ConfigError(
        f'The encoding of column {name!r} cannot be inferred: the first sample has the value {value!r:.100} of type '
        f"{type(value).__name__}. Name it in `columns`, as in columns={{{name!r}: 'json'}}."
    )
