"""The metadata of shards: their files, counts and columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from headrace.format.encodings.registry import fixed_array_type, get_mds_encoding

IntArray: TypeAlias = 'np.ndarray[Any, np.dtype[np.int64]]'

NO_HASHES: Final[Mapping[str, str]] = MappingProxyType({})  # the hashes of all files without any

NAME_MEANINGS: Final = (
    ' Shards of an older version do not say what they mean: if it is the same, name it in `meanings` of index.json.'
)
_LINE_KINDS: Final = {'str': 'str', 'int': 'int64', 'float': 'float64'}


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One stored file."""

    basename: str
    """Path below the dataset's folder, '/'-separated, without '.' and '..' parts."""
    bytes: int
    """Exact size."""
    hashes: Mapping[str, str]
    """Algorithm name to hexadecimal digest; may be empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A MappingProxyType cannot be pickled; indexes travel to spawned workers.
        return FileInfo, (self.basename, self.bytes, dict(self.hashes))


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a shard, raw and compressed."""

    raw: FileInfo
    """The raw file, which readers map."""
    zip: FileInfo | None
    """The compressed file; None for an uncompressed shard."""


class ColumnBatch:
    """The columns of one batch, filled by ``ShardReader.gather``.

    Attributes:
        columns: a numpy array ``[n, *shape]`` for each column of fixed-size numbers, else a list of length n. A list
            holds None for rows not yet gathered.
        raw: the memory of each array as opaque elements ``[n]``, for copying whole values.
    """

    __slots__ = ('columns', 'raw')

    def __init__(self, columns: dict[str, np.ndarray[Any, Any] | list[Any]]) -> None:
        self.columns = columns
        self.raw: dict[str, np.ndarray[Any, Any]] = {
            name: as_rows(column) for name, column in columns.items() if isinstance(column, np.ndarray)
        }


def as_rows(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A contiguous array ``[n, *shape]`` as ``[n]`` opaque elements; one of shape ``[n]`` stays as it is."""
    if array.ndim == 1:
        return array
    width = array.strides[0]
    return np.ndarray((len(array),), f'V{width}', buffer=array.data)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a batch; shards of several schemas may fill one."""

    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]] | None]
    """Dtype and shape of a value by column; None for columns gathered into a list."""

    def allocate(self, n: int, names: Collection[str] | None = None) -> ColumnBatch:
        """Room for n samples: arrays ``[n, *shape]`` (not initialised) and lists of None.

        Args:
            n: how many samples.
            names: the columns that are read. None: all.
        """
        columns: dict[str, np.ndarray[Any, Any] | list[Any]] = {}
        for name, array in self.arrays.items():
            if names is None or name in names:
                columns[name] = [None] * n if array is None else np.empty((n, *array[1]), array[0])
        return ColumnBatch(columns)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a shard; shards of one index with equal columns share one object."""

    format: str
    """'mds', 'json', 'csv', 'tsv' or 'xsv'."""
    names: tuple[str, ...]
    """Column names in the order in which values are stored."""
    encodings: tuple[str, ...]
    """The encoding of each column."""
    sizes: tuple[int | None, ...] = ()
    """mds: the fixed size of each column in bytes, None if values differ in length. Else empty."""
    newline: str = ''
    """json and the separated formats: the end of a line."""
    separator: str = ''
    """The separated formats: the text between two values."""
    meanings: tuple[str, ...] = ()
    """The meanings of the columns' values that their encodings do not say, such as 'timestamp[us]'."""
    arrays: tuple[tuple[np.dtype[Any], tuple[int, ...]] | None, ...] = field(
        init=False, repr=False, compare=False, default=()
    )
    """Dtype (native) and shape of each column that is gathered into an array; None for those gathered into a list."""
    layout: Any = field(init=False, repr=False, compare=False, default=None)
    """Values that the format's reader computes once per schema."""

    def __post_init__(self) -> None:
        types = [fixed_array_type(name) if self.format == 'mds' else None for name in self.encodings]
        arrays = tuple(None if kind is None else (kind[0].newbyteorder('='), kind[1]) for kind in types)
        object.__setattr__(self, 'arrays', arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (
            self.format,
            self.names,
            self.encodings,
            self.sizes,
            self.newline,
            self.separator,
            self.meanings,
        )

    @property
    def columns(self) -> dict[str, str]:
        """Column name to encoding."""
        return dict(zip(self.names, self.encodings, strict=True))

    @property
    def meaning_of(self) -> dict[str, str]:
        """Column name to meaning, of those that have one."""
        return {name: meaning for name, meaning in zip(self.names, self.meanings, strict=False) if meaning}

    @property
    def min_sample_size(self) -> int:
        """Minimum bytes of a sample in its shard's data file."""
        if self.format == 'mds':
            return sum(4 if size is None else size for size in self.sizes)
        return len(self.newline.encode('utf-8'))

    def gathered(self, names: Collection[str] | None = None) -> Columns:
        """The columns of a batch, or only those of `names`."""
        arrays = zip(self.names, self.arrays, strict=True)
        return Columns({name: array for name, array in arrays if names is None or name in names})

    def kinds(self, names: Collection[str] | None = None) -> dict[str, str]:
        """The types of columns in a batch, such as ``int64`` or ``float32 array of shape (4,)``.

        Columns whose kinds `do_stack` make the same batches with any encodings.
        """
        return {
            name: get_mds_encoding(encoding).kind if self.format == 'mds' else _LINE_KINDS[encoding]
            for name, encoding in zip(self.names, self.encodings, strict=True)
            if names is None or name in names
        }

    def allocate(self, n: int, names: Collection[str] | None = None) -> ColumnBatch:
        return self.gathered().allocate(n, names)

    def config(self) -> dict[str, Any]:
        """The schema's entries of an index or of a shard's header."""
        if self.format == 'json':
            return {'columns': self.columns, 'newline': self.newline}
        config: dict[str, Any] = {'column_names': list(self.names), 'column_encodings': list(self.encodings)}
        if self.format == 'mds':
            config['column_sizes'] = list(self.sizes)
        else:
            config['newline'] = self.newline
        if self.format == 'xsv':
            config['separator'] = self.separator
        return config


def differing_meanings(places: Iterable[tuple[Mapping[str, str], Mapping[str, str], str]]) -> dict[str, str]:
    """The differences by column between `places`: each with its `Schema.kinds`, `Schema.meaning_of` and name."""
    seen: dict[str, tuple[str, str, str]] = {}
    differences: dict[str, str] = {}
    for kinds, meanings, place in places:
        for name, kind in kinds.items():
            meaning = meanings.get(name, '')
            if kind == 'Decimal' and not meaning:
                continue  # each value of MDS has its own scale
            here = meaning, meaning or kind, place
            other = seen.setdefault(name, here)
            if other[0] != meaning:
                differences.setdefault(name, f'{name!r} is {other[1]} in {other[2]}, and {here[1]} in {here[2]}')
    return differences


class Erasure(NamedTuple):
    rows: tuple[int, ...] = ()  # Ascending.
    was: str = ''  # The text of the shard's entry before, by which checkpoints know the data.


_NONE: Final = Erasure()


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard's entry in an index."""

    format: str
    """'mds', 'json', 'csv', 'tsv' or 'xsv'."""
    samples: int
    """Number of samples; may be 0."""
    files: tuple[ShardFile, ...]
    """mds: (data,); the others: (data, meta)."""
    compression: str | None
    """Algorithm with an optional level, such as 'zstd:7'."""
    hashes: tuple[str, ...]
    """Names of the hash algorithms in the writer's settings."""
    size_limit: int | None
    """The writer's limit in bytes, None for no limit."""
    schema: Schema
    """The columns."""
    made_from: str | None = None
    """The format of the data that the cache makes this shard from. Its sizes are then estimates."""
    erasure: Erasure = _NONE
    """The rows that `headrace erase` has emptied."""

    @property
    def name(self) -> str:
        """That of its first raw file, relative to the index, which names the shard."""
        return self.files[0].raw.basename

    @property
    def file_names(self) -> list[str]:
        """The names of all its files, raw and compressed."""
        return [info.basename for file in self.files for info in (file.raw, file.zip) if info is not None]

    @property
    def stored(self) -> dict[str, int]:
        """Name and bytes of each file that is stored: the compressed ones, if there are any."""
        return {(file.zip or file.raw).basename: (file.zip or file.raw).bytes for file in self.files}

    def moved(self, folder: str) -> ShardInfo:
        """The same shard below ``folder``, as in an index of a parent folder."""

        def move(info: FileInfo) -> FileInfo:
            return replace(info, basename=f'{folder}/{info.basename}')

        files = (ShardFile(move(file.raw), move(file.zip) if file.zip else None) for file in self.files)
        erasure = self.erasure
        if erasure.was:
            was = json.loads(erasure.was)
            for key in {'raw_data', 'zip_data'} & {key for key, value in was.items() if value}:
                was[key]['basename'] = f'{folder}/{was[key]["basename"]}'
            erasure = erasure._replace(was=json.dumps(was, sort_keys=True))
        return replace(self, files=tuple(files), erasure=erasure)

    def entry(self) -> dict[str, Any]:
        """The shard's object in ``index.json``."""
        entry: dict[str, Any] = {
            'version': 2,
            'format': self.format,
            'compression': self.compression,
            'hashes': list(self.hashes),
            'size_limit': self.size_limit,
            'samples': self.samples,
            **self.schema.config(),
        }
        for part, file in zip(('data', 'meta'), self.files, strict=False):
            entry[f'raw_{part}'] = _file_entry(file.raw)
            entry[f'zip_{part}'] = _file_entry(file.zip) if file.zip else None
        return entry


def _file_entry(info: FileInfo) -> dict[str, Any]:
    return {'basename': info.basename, 'bytes': info.bytes, 'hashes': dict(info.hashes)}
