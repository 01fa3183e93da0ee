"""Inputs of a conversion, by number: what all kinds have, and the records that a converter of a known dataset lists."""

from __future__ import annotations

import copy
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.sources.ledger import Ledger

T = TypeVar('T')
Place: TypeAlias = str | os.PathLike[str]
_NO_INPUTS: Final = ('split', 'out_mp4')
"""Keys of identities whose values may name a folder of the output: by chance, and since videos may go there."""
_MANY: Final = 64
_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that each input takes in a shard: one number each, or the mean of all."""

    each: np.ndarray[Any, np.dtype[np.int64]] | None = None
    mean: float | None = None
    is_exact: bool = False  # whether the numbers are known, and not estimated


@dataclass(frozen=True, slots=True)
class BadRow:
    place: str  # the row within its input, such as 'line 12'
    error: Exception


class Inputs(ABC):
    """Inputs by number, from 0: files, rows, parts. Picklable, so that each worker has its own."""

    kind: str  # The kind of the source, such as 'imagefolder', for messages and the report.
    identity: Mapping[str, object]
    """JSON that tells the whole from others, in any process. A restart with another one is refused."""
    columns: Mapping[str, str] | None = None
    """The MDS encoding of each column; None before a sample is seen."""
    meanings: Mapping[str, str] | None = None
    """Meanings of columns beyond their encodings: see `Schema.meanings`. None: nobody knows."""
    rows: int | None = None
    sizes: Sizes | None = None
    files: Mapping[str, bytes] = {}  # Further files of the dataset, by name, such as the names of its classes.
    ledger: Ledger = Ledger()  # Files that are read, and those that are left out.
    are_files: bool = False
    reads_ahead: int = 1  # Number of inputs that threads of one process read at the same time; 1: one after another.
    gives_batches: bool = False  # Whether `read` gives batches of columns instead of single samples.

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, number: int) -> str:
        """An input as its owner knows it: a path, a URL, a row. For messages."""

    def file(self, number: int) -> str | None:
        """Path or URL of the file whose rows an input is, which `digest` tells from its other versions; None: none."""
        del number

    def places(self) -> Iterable[Place]:
        """Paths and URLs that are read, if known, or other texts. An output must hold none of them."""
        return ()

    def digest(self, begin: int, end: int) -> str | None:
        """Equal in any process while inputs `begin` to before `end` stay; others are done again. None: unknown."""
        del begin, end

    @abstractmethod
    def read(self, number: int) -> Iterable[Mapping[str, Any] | BadRow]:
        """The samples of an input, or batches of columns. Errors except those of stores: the input is bad."""


class RecordInputs(Inputs, Generic[T]):
    """Numbered records of a known dataset, each with a place in its files.

    `read` gives the sample of a record, or an iterable of samples. A `BadRow` among them is left out and reported. Any
    exception means that the record is bad. With processes that are not forked, it can be pickled.

    `records`: JSON values that can be pickled. Each one tells its file's size and time of change, so that a restart
    reads changed files again. `identity`: JSON that tells the whole from others: the folder, and the settings of
    `read`. `label` names a record in messages. `sizes`: bytes that each takes in a shard, about; None: unknown.
    `one_row`: whether each gives exactly one sample.
    """

    def __init__(
        self,
        read: Callable[[T], Mapping[str, Any] | Iterable[Mapping[str, Any] | BadRow]],
        records: Sequence[T],
        *,
        kind: str,
        columns: Mapping[str, str],
        identity: Mapping[str, object],
        label: Callable[[T], str],
        sizes: Sequence[int] | npt.NDArray[np.int64] | None = None,
        one_row: bool = True,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self._read, self._records, self._label, self._one_row = read, records, label, one_row
        self.kind, self.columns, self.identity, self.files = kind, columns, identity, dict(files or {})
        self.rows = len(records) if one_row else None
        self.sizes = None if sizes is None else Sizes(each=np.asarray(sizes, np.int64))

    def first(self, limit: int | None) -> RecordInputs[T]:
        copied = copy.copy(self)
        copied._records = self._records[:limit]
        copied.rows = len(copied._records) if self._one_row else None
        if self.sizes is not None and self.sizes.each is not None:
            copied.sizes = Sizes(each=self.sizes.each[:limit])
        return copied

    def with_files(self, files: Mapping[str, bytes]) -> RecordInputs[T]:
        copied = copy.copy(self)
        copied.files = {**self.files, **files}
        return copied

    def __len__(self) -> int:
        return len(self._records)

    def name(self, number: int) -> str:
        return self._label(self._records[number])

    def places(self) -> Iterator[Place]:
        return places_in([value for name, value in self.identity.items() if name not in _NO_INPUTS])

    def digest(self, begin: int, end: int) -> str:
        return digest_of(self._records[begin:end])

    def read(self, number: int) -> Iterable[Mapping[str, Any] | BadRow]:
        samples = self._read(self._records[number])
        return (cast('Mapping[str, Any]', samples),) if isinstance(samples, Mapping) else samples


def digest_of(values: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode('utf-8', 'surrogatepass'))


def classes_file(names: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, bytes]:
    """The file with the names of classes, by number; of several columns, by column. Empty without names."""
    return {'classes.json': json.dumps(names, ensure_ascii=False, indent=1).encode('utf-8', 'replace')} if names else {}


def places_in(value: object, depth: int = _DEPTH) -> Iterator[Place]:
    """Texts and paths in an input or sample, also within mappings and sequences. Long lists of numbers are left out."""
    if isinstance(value, str | os.PathLike):
        yield cast('Place', value)
        return
    if isinstance(value, Mapping):
        value = list(cast('Mapping[object, object]', value).values())
    if not depth or not isinstance(value, list | tuple | set | frozenset):
        return
    values = cast('list[object]', value)
    if len(values) > _MANY and not any(isinstance(first, str | os.PathLike) for first in islice(values, 1)):
        values = islice(values, _MANY)
    for inner in values:
        yield from places_in(inner, depth - 1)
