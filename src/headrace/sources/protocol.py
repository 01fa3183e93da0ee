"""The protocol of formats that headrace reads without conversion.

A `SourceFormat` indexes the objects of a dataset once: a `Source` lists its columns and its parts. A part is what is
read at one time, such as a row group of Parquet or a run of samples of a tar. `Source.batches` turns the bytes of a
part into columns. The cache keeps these as one MDS shard, and a converter writes them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headrace.storage import ObjectInfo


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one object that are read together, and become one shard."""

    key: str  # The object, relative to the store's root.
    ranges: tuple[tuple[int, int], ...]
    """Offset and size in bytes of each range with rows, ascending, without overlap. Empty: the whole object."""
    rows: int  # Number of rows, at least 1.
    size: int  # Estimate of the bytes that the rows take as an MDS shard.
    beside: tuple[tuple[str, int, int], ...] = ()
    """Key, offset and size in bytes of ranges of other objects that the rows need, such as their lengths."""


class Source(Protocol):
    """A dataset of another format, indexed. It never changes, so threads may share it.

    A source may also have an `identity`, a text by which checkpoints know the data, such as the snapshot of a table.
    Otherwise they know the names and sizes of all objects that `SourceFormat.find` gave, and the rows of the parts. The
    source of a table has a `snapshot`, which checkpoints show, and `marks`: for each object, a text that changes if the
    table says of its rows something else.

    A source may also have ``lengths_of(part, column, read)``, which gives the values of a column, or their lengths as
    integers, in runs of rows. It reads less than the part: ``read`` gives the bytes of
    ranges, each a key, offset and size, one after another. It returns None if only the part tells.

    A source that was just made may have `notes`, sentences for the ledger on what it left out or decided.
    """

    @property
    def format(self) -> str:
        """The name of its `SourceFormat`."""
        ...

    @property
    def columns(self) -> Mapping[str, str]:
        """The MDS encoding of each column that is read."""
        ...

    @property
    def dropped(self) -> Sequence[str]:
        """Columns of the data that are not read, for the ledger. A loaded source may not know them."""
        ...

    @property
    def meanings(self) -> Mapping[str, str]:
        """The meaning of columns beyond their encodings, such as 'timestamp[us]' or 'bool'."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The parts, in the order of the rows."""
        ...

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        """The rows of a part, in order: batches of columns of equal length, whose values suit the MDS encodings.

        An array holds one value for each element of its first axis.

        Args:
            part: number of the part.
            data: the bytes of `Part.beside`, then those of its ranges, one after another.

        Raises:
            ShardError: the bytes contradict the index, or hold a value that its column cannot store.
        """
        ...

    def to_bytes(self) -> bytes:
        """The source for `SourceFormat.load`, in a form that runs no code when it is read."""
        ...


class SourceFormat(Protocol):
    """A format of datasets: a module or an object with these functions."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a module's constant
        """The name for a stream's `format`, such as 'parquet'."""
        ...

    def find(self, objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        """The objects of this format in the listing of a dataset, ordered as their rows. Empty for another format."""
        ...

    @property
    def index(self) -> Callable[..., Source]:
        """A function that indexes the objects that `find` chose, with few and concurrent requests.

        It is called as ``index(store, objects, *, columns, allow_unsafe_types, **options)``. Further keyword parameters
        are the format's options: the keys of a stream's `format_options`. Their values are what JSON can express.

        Args:
            store: the dataset's root.
            objects: result of `find`.
            columns: the columns to read; None: all.
            allow_unsafe_types: whether columns may be of an encoding that runs code when it is read.

        Raises:
            ConfigError: the value of an option breaks its rule.
            FormatError: an object breaks its format's rules, or has a column that no MDS encoding can store.
            StreamError: the data lack one of `columns`.
            ImportError: the optional package of the format is not installed; the message names the extra.
        """
        ...

    def load(self, data: bytes) -> Source:
        """The source that `Source.to_bytes` gave.

        Raises:
            FormatError: the bytes are damaged, or of another version.
        """
        ...
