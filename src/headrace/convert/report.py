"""The result of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.convert.record import InputError

__all__ = ['ConversionReport']


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Figures of a finished conversion."""

    out: str
    """The folder or URL of the dataset."""
    kind: str
    """The kind of the source: 'imagefolder', 'parquet', 'function' and so on."""
    columns: Mapping[str, str]
    """The MDS encoding of each column."""
    inputs: int
    """Files, parts, rows or values that were read, those that were left out included."""
    rows: int
    """Samples of the dataset."""
    shards: int
    raw_bytes: int
    """Bytes of all shards before compression."""
    stored_bytes: int
    """Bytes of all shards as they are stored."""
    seconds: float
    """Time of this call; a restart does not count the time before it."""
    tasks_done_before: int
    """Tasks that a restart found finished."""
    errors: tuple[InputError, ...]
    """Inputs, or rows of one, that were left out. With `on_error='skip'` only the first 10."""
    num_errors: int
    """Number of all that were left out."""
