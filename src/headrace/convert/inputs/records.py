"""Numbered records of a known dataset, each with a place in its files: what a converter of that dataset lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.convert.apart import Place, places_in
from headrace.convert.protocol import BadRow, Sizes

__all__ = ['RecordInputs']

T = TypeVar('T')
_NO_INPUTS: Final = ('split', 'out_mp4')
"""Keys of identities whose values may name a folder of the output: by chance, and since videos may go there."""


class RecordInputs(Generic[T]):
    """Records and a function that reads one; see `Inputs`.

    Args:
        read: gives the sample of a record, or an iterable of samples. A `BadRow` among them is left out and reported.
            Any exception means that the record is bad. With processes that are not forked, it can be pickled.
        records: JSON values that can be pickled. Each one tells its file's size and time of change, so that a restart
            reads changed files again.
        kind: the name of the dataset, such as 'imagenet'.
        columns: the MDS encoding of each column.
        identity: JSON that tells the whole from others: the folder, and the settings of `read`.
        label: names a record in messages.
        sizes: bytes that each record takes in a shard, about; None: unknown.
        one_row: whether each record gives exactly one sample.
        reads_ahead: records that threads of one process read at the same time; more than 1 for downloads.
        files: further files of the new dataset, by name.
    """

    gives_batches = False

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
        reads_ahead: int = 1,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self._read, self._records, self._label, self._one_row = read, records, label, one_row
        self.kind, self.columns, self.identity, self.files = kind, columns, identity, dict(files or {})
        self.reads_ahead = reads_ahead
        self._sizes = None if sizes is None else np.asarray(sizes, np.int64)

    @property
    def rows(self) -> int | None:
        """The number of records, if each is a row."""
        return len(self._records) if self._one_row else None

    @property
    def sizes(self) -> Sizes | None:
        """Those given."""
        return None if self._sizes is None else Sizes(each=self._sizes)

    def first(self, limit: int | None) -> RecordInputs[T]:
        """The same with at most `limit` records."""
        return self._with(self._records[:limit], None if self._sizes is None else self._sizes[:limit], self.files)

    def with_files(self, files: Mapping[str, bytes]) -> RecordInputs[T]:
        """The same with more files for the new dataset."""
        return self._with(self._records, self._sizes, {**self.files, **files})

    def _with(
        self, records: Sequence[T], sizes: npt.NDArray[np.int64] | None, files: Mapping[str, bytes]
    ) -> RecordInputs[T]:
        return RecordInputs(
            self._read,
            records,
            kind=self.kind,
            columns=self.columns,
            identity=self.identity,
            label=self._label,
            sizes=sizes,
            one_row=self._one_row,
            reads_ahead=self.reads_ahead,
            files=files,
        )

    def __len__(self) -> int:
        return len(self._records)

    def name(self, number: int) -> str:
        """The record's label."""
        return self._label(self._records[number])

    def places(self) -> Iterator[Place]:
        """The folders of inputs, as `identity` tells them."""
        return places_in([value for name, value in self.identity.items() if name not in _NO_INPUTS])

    def digest(self, begin: int, end: int) -> str:
        """Of the records' JSON."""
        text = json.dumps(self._records[begin:end], sort_keys=True)
        return xxhash.xxh3_128_hexdigest(text.encode('utf-8', 'surrogatepass'))

    def read(self, number: int) -> Iterable[Mapping[str, Any] | BadRow]:
        """The samples of a record."""
        found = self._read(self._records[number])
        return (cast('Mapping[str, Any]', found),) if isinstance(found, Mapping) else found
