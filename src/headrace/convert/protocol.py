"""The protocol of data to convert: numbered inputs, each of which gives rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

__all__ = ['BadRow', 'Inputs', 'Sizes']


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that each input takes in a shard: one number each, or the mean of all."""

    each: np.ndarray[Any, np.dtype[np.int64]] | None = None
    mean: float | None = None
    is_exact: bool = False
    """Whether the numbers are known, and not estimated."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of an input that cannot be read, while those after it can."""

    place: str
    """The row within its input, such as 'line 12'."""
    error: Exception


class Inputs(Protocol):
    """Inputs by number, from 0: files, rows, parts. Picklable, so that each worker has its own."""

    @property
    def kind(self) -> str:
        """The kind of the source, such as 'imagefolder', for messages and the report."""
        ...

    @property
    def columns(self) -> Mapping[str, str] | None:
        """The MDS encoding of each column; None: not known before a sample is seen."""
        ...

    @property
    def identity(self) -> Mapping[str, object]:
        """JSON that tells the whole from others, in any process. A restart with another one is refused."""
        ...

    @property
    def rows(self) -> int | None:
        """The number of rows of all inputs; None: unknown before they are read."""
        ...

    @property
    def sizes(self) -> Sizes | None:
        """Estimate of their sizes; None: unknown."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Further files of the dataset, by name, such as the names of its classes."""
        ...

    @property
    def reads_ahead(self) -> int:
        """Number of inputs that threads of one process read at the same time; 1: one after another."""
        ...

    @property
    def gives_batches(self) -> bool:
        """Whether `read` gives batches of columns instead of single samples."""
        ...

    def __len__(self) -> int:
        """The number of inputs."""
        ...

    def name(self, number: int) -> str:
        """An input as its owner knows it: a path, a URL, a row. For messages."""
        ...

    def places(self) -> Iterable[str | os.PathLike[str]]:
        """Paths and URLs that are read, as far as they are known. An output must hold none of them.

        Texts may be among them that are no paths.
        """
        ...

    def digest(self, begin: int, end: int) -> str | None:
        """Digest of the inputs from `begin` to before `end`, equal in any process while these inputs do not change.

        A restart does tasks with changed inputs again. None: nobody can tell.
        """
        ...

    def read(self, number: int) -> Iterable[Mapping[str, Any] | BadRow]:
        """The samples of an input, or batches of columns: each value of a batch is a sequence with one value per row.

        A `BadRow` stands for a row that is left out and reported.

        Any exception means that this input is bad, except errors of headrace's stores.
        """
        ...
