"""Columns from samples: the encoding of each, by the types of its values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from headrace.errors import ConfigError
from headrace.format.encodings.arrays import DTYPES

_ENOUGH: Final = 64


class FirstSamples:
    """The first samples of a writer without columns: arrays of equal shapes in all of them get a fixed shape."""

    def __init__(self) -> None:
        self.samples: list[Mapping[str, Any]] = []  # The samples that tell the columns.
        self.given = self.samples  # Those of them that wait to be encoded.

    def add(self, sample: Mapping[str, Any]) -> bool:
        """Keep a copy of a sample, since the caller may change it; whether there are enough now."""
        infer_columns([*self.samples[:1], sample])
        self.samples.append(
            {name: value if _is_kept(value) else copy.deepcopy(value) for name, value in sample.items()}
        )
        return len(self.samples) >= _ENOUGH

    def add_rows(self, columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]) -> None:
        """Look at the first rows of a batch, at least one, which the caller encodes."""
        some = zip(*(values[:_ENOUGH] for values in columns.values()), strict=False)
        rows = [dict(zip(columns, row, strict=True)) for row in some]
        infer_columns([*self.samples, *rows])
        self.given, self.samples = self.samples, [*self.samples, *rows]

    def columns(self) -> dict[str, str]:
        """The columns, which are printed."""
        columns = infer_columns(self.samples)
        print(f'Columns by the first {len(self.samples)} samples: {columns}', flush=True)
        return columns


def infer_columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = list(samples[0])
    for number, sample in enumerate(samples):
        if set(sample) != set(names):
            raise ConfigError(
                f'Columns are inferred from samples with equal keys, but sample 0 has {names} and sample {number} has '
                f'{list(sample)}. Give `columns`, or the same keys.'
            )
    return {name: _encoding_of(name, [sample[name] for sample in samples]) for name in names}


def _encoding_of(name: str, values: Sequence[Any]) -> str:
    kinds = list(dict.fromkeys(map(_kind, values)))
    if len(kinds) == 1 and kinds[0] is not None:
        return kinds[0]
    if all(kind is not None and kind.startswith('ndarray') for kind in kinds):
        dtypes = {str(kind).split(':')[1] for kind in kinds}
        return f'ndarray:{dtypes.pop()}' if len(dtypes) == 1 else 'ndarray'
    if set(kinds) <= {'int', *DTYPES}:
        common = np.result_type(*('int64' if kind == 'int' else str(kind) for kind in kinds))
        if common.kind != 'f' or any(str(kind).startswith('float') for kind in kinds):
            return common.name
    if set(kinds) <= {'jpeg', 'png'}:
        return 'png' if 'jpeg' not in kinds else 'jpeg'
    number = next((i for i, value in enumerate(values) if _kind(value) is None), None)
    if number is None:
        what = f'whose encodings would be {", ".join(map(str, kinds))}'
    else:
        what = f'such as that of sample {number}, a {type(values[number]).__name__}'
    raise ConfigError(
        f'No encoding suits all values of column {name!r}, {what}. Give `columns`, with an encoding for each, or '
        f'convert the values.'
    )


def _kind(value: Any) -> str | None:
    for kind, encoding in ((str, 'str'), (bytes, 'bytes'), (int, 'int'), (np.bool_, 'uint8')):
        if isinstance(value, kind):
            return encoding
    if isinstance(value, np.generic):
        return value.dtype.name if value.dtype.name in DTYPES else None
    if isinstance(value, float):
        return 'float64'
    if isinstance(value, dict | list | tuple):
        return 'json'
    if isinstance(value, np.ndarray) or type(value).__module__ == 'torch':
        return _array_kind(value)
    return _image_kind(value)


def _array_kind(value: Any) -> str | None:
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError):  # a tensor of a device, with a gradient, or of a dtype that numpy has not
        return None
    if array.dtype.name not in DTYPES:
        return None
    if array.ndim == 0:
        return array.dtype.name
    return f'ndarray:{array.dtype.name}:{",".join(map(str, array.shape))}' if array.size else None


def _image_kind(value: Any) -> str | None:
    if not type(value).__module__.startswith('PIL.'):
        return None
    # Without its file, an image keeps its pixels as PNG.
    return 'jpeg' if getattr(value, 'format', None) in ('JPEG', 'MPO') else 'png'


def _is_kept(value: Any) -> bool:
    """Whether a value cannot change, or is an image, of which a copy would lose its file."""
    return isinstance(value, int | float | str | bytes) or type(value).__module__.startswith('PIL.')
