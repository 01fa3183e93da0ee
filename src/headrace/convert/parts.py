"""Datasets that many tasks of a cluster write: each attempt at a task writes a part, and each task has one that counts.

A part is a folder below `out`, whose name no other attempt shares. The driver gets a `WrittenPart` of the attempt that
the engine counts, with the index of its shards. Only these parts come into the dataset's index. The others are deleted,
whether their attempts failed, were lost, or came second.

The driver's mark stands at `out` until the index is there. Without it no attempt begins. An attempt of a finished
dataset loses its own mark with its files, so it ends at its next shard.

An engine gives Arrow batches. Their columns have encodings of the user's, or inferred ones, as for Parquet.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from headrace.convert.apart import check_keeps
from headrace.dataset.writing.claim import Claim, WriterMark, part_name, read_mark, reclaim_parts
from headrace.dataset.writing.place import StorePlace, may_hold
from headrace.dataset.writing.start import INDEX, MARK, Terms
from headrace.dataset.writing.writer import MDSWriter
from headrace.errors import AccessDeniedError, ConfigError, StorageError
from headrace.errors.mapping import add_note
from headrace.errors.redaction import warn
from headrace.format import MDSEncoder, ShardInfo, dump_index, is_mds_encoding, parse_index
from headrace.sources.arrow_types import NullValueError, arrow_columns
from headrace.storage import Retry, open_store
from headrace.storage.output import Out, split_out
from headrace.storage.stores.local import LocalStore

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

_OPTIONS: Final = {
    'compression', 'cost', 'hashes', 'size_limit', 'keep_local', 'exist_ok', 'progress_bar', 'retry', 'max_workers',
    'options',
}  # fmt: skip
_VALUE_ERRORS: Final = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""Errors of a writer about a sample that it cannot store."""
_INTEGERS: Final = {'int', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'str_int'}
_FLOATS: Final = {'float16', 'float32', 'float64', 'str_float'}


@dataclass(frozen=True, slots=True)
class WrittenPart:
    number: int  # Number of the task, which orders the parts.
    name: str  # Folder below `out`.
    samples: int  # Samples in its shards.
    skipped: int  # Samples that no column could store.
    reason: str  # The error of the first of them.
    index: bytes  # Content of its index.json.


@dataclass(frozen=True)
class PartWriter:
    """Opens parts in the tasks of a cluster, where the engine has sent it."""

    folder: str | None  # local root of the dataset, if there is one
    remote: str | None  # URL of the dataset's root, if there is one
    mark: WriterMark  # of the driver
    columns: Mapping[str, str]
    options: Mapping[str, Any]  # arguments of `MDSWriter`, without `out` and `columns`
    skip_bad: bool  # whether samples that their columns cannot store are left out and counted

    def open(self, number: int) -> OpenPart:
        """Begin a new part of a task; ConfigError: the driver's mark is gone, or on a folder of its machine only."""
        root = self.remote if self.remote is not None else self.folder
        assert root is not None
        retry = Retry(attempts=1 + self.options.get('retry', 2))
        try:
            mark = read_mark(StorePlace(open_store(root, self.options.get('options')), retry))
        except AccessDeniedError:  # a key that may only write
            mark = self.mark
        if mark != self.mark:
            raise ConfigError(
                f'All tasks of a conversion write to the same place, but {root} as this machine sees it lacks the mark '
                f'{MARK} of the driver. Give an `out` that all machines share: a URL, or a mounted folder. If the '
                f'driver has ended, this attempt came too late and its result is not needed.'
            )
        name = part_name(number, self.mark.run)
        if self.folder is not None and self.remote is not None:
            reclaim_parts(Path(self.folder))
        folder = None if self.folder is None else os.path.join(self.folder, name)  # noqa: PTH118
        url = None if self.remote is None else f'{self.remote.rstrip("/")}/{name}'
        out: Any = (folder, url) if folder and url else folder or url
        return OpenPart(number, name, MDSWriter(columns=self.columns, out=out, **self.options), skip_bad=self.skip_bad)


class OpenPart:
    """A part that is being written; a context manager. An error within its block gives the part up."""

    def __init__(self, number: int, name: str, writer: MDSWriter, *, skip_bad: bool) -> None:
        self._number, self._name, self._writer, self._skip_bad = number, name, writer, skip_bad
        self._rows = self._skipped = 0
        self._reason = ''

    def add(self, sample: Mapping[str, Any]) -> None:
        """Write one sample. A value that no column stores is an error, unless `skip_bad` is set."""
        try:
            self._writer.write(sample)
        except _VALUE_ERRORS as error:
            if not self._skip_bad:
                raise
            self._skipped += 1
            # The writer counts the samples of a batch that it refused, too.
            message = re.sub(r'^Sample \d+', f'Sample {self._rows}', str(error.args[0] if error.args else error))
            self._reason = self._reason or message
        self._rows += 1

    def add_batch(self, columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]) -> None:
        """Write samples that are given by column, equally many values in each; see `add`."""
        try:
            self._writer.write_batch(columns)
            self._rows += min(map(len, columns.values()), default=0)
        except _VALUE_ERRORS:
            if not self._skip_bad:
                raise
            # No sample was added: find the bad ones.
            rows = zip(*map(_python_values, columns.values()), strict=True)
            for values in rows:
                self.add(dict(zip(columns, values, strict=True)))

    def finish(self) -> WrittenPart:
        self._writer.finish()
        shards = self._writer.shards
        if self._writer.remote is not None:
            with contextlib.suppress(OSError):  # it holds what `keep_local` keeps
                os.rmdir(self._writer.local)  # noqa: PTH106
        samples = sum(shard.samples for shard in shards)
        return WrittenPart(self._number, self._name, samples, self._skipped, self._reason, dump_index(shards))

    def __enter__(self) -> OpenPart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            add_note(error, f'While writing part {self._number} of {self._writer.remote or self._writer.local}.')
            # The driver may have removed the folder of an attempt that comes too late.
            with contextlib.suppress(FileNotFoundError):
                self._writer.abort()


class PartedDataset:
    """The driver's side: claims `out`, and makes the dataset of the parts that count.

    With a ``(folder, URL)`` the folder is each machine's own.
    """

    def __init__(
        self, out: Out, columns: Mapping[str, str], options: Mapping[str, Any], *, on_bad_sample: str = 'raise'
    ) -> None:
        if on_bad_sample not in {'raise', 'skip'}:
            raise ConfigError(f"`on_bad_sample` is 'raise' or 'skip', but is {on_bad_sample!r}.")
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise ConfigError(
                f'MDSWriter got an Invalid Writer argument: {unknown[0]!r}. Beside `out` and `columns` it takes '
                f'{sorted(_OPTIONS)}.'
            )
        self.folder, self.remote = split_out(out)
        self._columns, self._options, self._skip_bad = dict(columns), dict(options), on_bad_sample == 'skip'
        settings = {name: options[name] for name in ('compression', 'cost', 'hashes', 'size_limit') if name in options}
        MDSEncoder(columns, **settings)  # refuses wrong ones here, not in a task
        retry = Retry(attempts=1 + options.get('retry', 2))
        store = None if self.remote is None else open_store(self.remote, options.get('options'))
        self._at_store = None if store is None else StorePlace(store, retry)
        self._at_folder = None if self.folder is None else StorePlace(LocalStore(self.folder), retry)
        self._keeps_folder = store is None or bool(options.get('keep_local'))
        self._claim: Claim | None = None
        self._counted: set[str] = set()  # names of the parts that the index lists
        self._index: bytes | None = None  # the index, once it may be stored

    def check_keeps(self, places: Sequence[str]) -> None:
        """Refuse an `out` that holds files at these paths and URLs, which `exist_ok` would delete."""
        for place in filter(None, (self._at_store, self._at_folder)):
            check_keeps(places, place.store)

    def begin(self) -> PartWriter:
        """Claim `out`, and remove the leftovers of a killed conversion."""
        terms = Terms(exist_ok=self._options.get('exist_ok', False))
        self._claim = Claim(self.folder, self._at_store, terms, keep_local=self._keeps_folder)
        mark = self._claim.folder.mark
        folder = None if self.folder is None else str(self.folder.absolute())
        return PartWriter(folder, self.remote, mark, self._columns, self._options, self._skip_bad)

    def finish(self, parts: Iterable[WrittenPart], *, merge_index: bool = True) -> None:
        """Make the dataset of `parts`, one for each task, and delete the others.

        Without `merge_index` each part is a dataset. Once the index is stored, no part that it lists is deleted.
        """
        assert self._claim is not None, 'begin() comes first'
        parts = sorted(parts, key=lambda part: part.number)
        if len({part.number for part in parts}) != len(parts):
            raise RuntimeError(f'Each task counts once, but the engine returned {[part.number for part in parts]}.')
        filled = [part for part in parts if part.samples]
        skipped, reason = sum(part.skipped for part in parts), next((part.reason for part in parts if part.reason), '')
        if not filled:
            without = f' without its {skipped} bad samples, the first of them because: {reason}' if skipped else ''
            raise ConfigError(
                f'A dataset has at least one sample, but the input is empty{without}. Check its filters and columns.'
            )
        self._counted = {part.name for part in filled}
        if merge_index:
            self._write_index(dump_index((shard for part in filled for shard in _shards(part)), version_first=True))
        self._sweep(self._release(), self._counted)
        if skipped:
            warn(f'Samples left out of {self.remote or self.folder}: {skipped}. The first in a part: {reason}')

    def abort(self) -> None:
        """Delete all parts, unless the index is stored. Without `begin`, or after `finish`, it does nothing."""
        if self._claim is None:
            return
        kept: set[str] = set()
        if self._index is not None and may_hold(self._main(), INDEX, self._index):
            kept = self._counted
            warn(f'The index of {self.remote or self.folder} may be stored, so the parts that it lists stay.')
        self._sweep(self._release(), kept)

    def _release(self) -> str:
        assert self._claim is not None
        claim, self._claim = self._claim, None
        claim.release()
        return claim.folder.mark.run

    def _write_index(self, index: bytes) -> None:
        assert self._claim is not None
        self._claim.check()
        self._index = index
        self._main().write(INDEX, index)
        if self._at_folder is not None and self._keeps_folder and self._at_store is not None:
            self._at_folder.write(INDEX, index)

    def _main(self) -> StorePlace:
        main = self._at_store or self._at_folder
        assert main is not None
        return main

    def _sweep(self, run: str, kept: set[str]) -> None:
        names = re.compile(rf'part-\d+-{run}-[0-9a-f]+')

        def counts(name: str) -> bool:
            return name in kept or not names.fullmatch(name)

        if self.folder is not None:
            _remove_folders(self.folder, lambda name: not counts(name) or (name in kept and not self._keeps_folder))
        if self._at_store is None:
            return
        if isinstance(self._at_store.store, LocalStore):
            _remove_folders(self._at_store.store.root, lambda name: not counts(name))
            return
        try:
            keys = [info.key for info in self._at_store.list('part-') if not counts(info.key.partition('/')[0])]
            # The marks first, so a late attempt uploads nothing further.
            for key in sorted(keys, key=lambda key: not key.endswith(MARK)):
                self._at_store.delete(key)
        except StorageError as error:
            place = self._at_store.shown
            warn(f'Parts that do not count could not be removed from {place}. No index lists them. {error}')


def _python_values(values: Sequence[Any] | np.ndarray[Any, Any]) -> Sequence[Any]:
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else cast('Sequence[Any]', values)


def _shards(part: WrittenPart) -> Iterable[ShardInfo]:
    table = parse_index(part.index, source=part.name, allow_unsafe_types=True)
    return (shard.moved(part.name) for shard in table)


def _remove_folders(parent: Path, is_left: Callable[[str], bool]) -> None:
    left: list[Path] = []
    reason = ''
    try:
        left = [path for path in parent.iterdir() if is_left(path.name)]
    except FileNotFoundError:
        return
    except OSError as error:
        reason = str(error)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    left = [path for path in left if path.exists()]
    if left or reason:
        warn(f'Parts that do not count could not be removed from {parent}. No index lists them. {reason or left[0]}')


# Arrow batches


def infer_columns(schema: pa.Schema, *, source: str) -> dict[str, str]:
    """The encoding of each column, as for Parquet (`headrace.sources.arrow_types`). Ray's tensors keep their shape."""
    plain = arrow_columns(_plain(schema), columns=None, source=source)
    return {field.name: _engine_encoding(field, source) or plain[field.name].encoding for field in schema}


def _plain(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field for field in schema if not _is_of_engine(field.type)], schema.metadata)


def _is_of_engine(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return isinstance(kind, pa.ExtensionType)


def _engine_encoding(field: pa.Field, source: str) -> str | None:
    """The encoding of a tensor type of Ray; None for types of Arrow."""
    if not _is_of_engine(field.type):
        return None
    kind: Any = field.type
    if not hasattr(kind, 'shape'):
        raise ConfigError(
            f'Column {field.name!r} of {source} holds Python objects, for which no encoding can be inferred. Give '
            f"`columns`, with an encoding such as 'json' or 'jpeg' for it."
        )
    # Older versions of Ray have another name for it.
    number = getattr(kind, 'value_type', None) or kind.scalar_type
    encoding = f'ndarray:{np.dtype(number.to_pandas_dtype()).name}'
    return encoding if None in kind.shape else f'{encoding}:{",".join(map(str, kind.shape))}'


def check_columns(columns: Mapping[str, str], schema: pa.Schema, *, source: str) -> None:
    """Check that the columns of a dataset are columns of the batches, with encodings for their types."""
    import pyarrow as pa

    for name, encoding in columns.items():
        if name not in schema.names:
            raise ConfigError(f'`columns` are columns of {source}, but {name!r} is none of {schema.names}.')
        field = schema.field(name)
        if _is_of_engine(field.type) and not hasattr(field.type, 'shape'):
            continue  # Python objects: the encoding says whether it stores them
        inferred = infer_columns(pa.schema([field], schema.metadata), source=source)[name]
        # The writer refuses unknown encodings.
        if is_mds_encoding(encoding) and not _stores(encoding, inferred):
            raise ConfigError(
                f'Mismatched types: column {name!r} of {source} is {field.type}, whose values an encoding '
                f'{encoding!r} does not store. Its encoding is {inferred!r}. Give that one, or cast the column first.'
            )


def _stores(encoding: str, inferred: str) -> bool:
    """Whether an encoding is for values with this inferred one. Each value is checked when it is written."""
    kind = encoding.partition(':')[0]
    if encoding == inferred or kind == 'pkl':
        return True
    if inferred in _INTEGERS:
        return kind in _INTEGERS | _FLOATS | {'json'}
    if inferred in _FLOATS:
        return kind in _FLOATS | {'json'}
    if inferred.startswith('ndarray'):
        return kind in {'ndarray', 'json'}
    if inferred == 'bytes':  # of files, such as images
        return kind not in _INTEGERS | _FLOATS | {'str', 'str_decimal', 'json'}
    return kind == 'json'


def columns_of(batch: pa.RecordBatch, columns: Mapping[str, str]) -> dict[str, Sequence[Any] | np.ndarray[Any, Any]]:
    """The values of a batch for a writer. Columns that the batch lacks are left out."""
    import pyarrow as pa

    wanted = [name for name in columns if name in batch.schema.names]
    plain = _plain(batch.select(wanted).schema)
    nullable = [name for name in plain.names if columns[name] == 'json']
    inferred = arrow_columns(plain, columns=None, with_nulls=nullable, source='a batch')
    values: dict[str, Sequence[Any] | np.ndarray[Any, Any]] = {}
    for name in wanted:
        array, column, encoding = batch.column(name), inferred.get(name), columns[name]
        is_array, is_number = encoding.startswith('ndarray'), not encoding.startswith(('str_', 'json', 'pkl'))
        try:
            if column is None:
                values[name] = _as_encoding(_tensors(array), encoding) if is_array else array.to_pylist()
            elif column.encoding == encoding or (column.encoding in _INTEGERS | _FLOATS and is_number):
                values[name] = column.convert(array)
            elif column.encoding.startswith('ndarray') and is_array:
                values[name] = _as_encoding(column.convert(array), encoding)
            else:
                values[name] = array.to_pylist()
        except (NullValueError, pa.ArrowException, ValueError):
            # Row by row, so that the writer names the sample.
            values[name] = _as_encoding(list(map(_array, array)), encoding) if is_array else array.to_pylist()
    return values


def _tensors(array: Any) -> Any:
    return array.to_numpy_ndarray() if hasattr(array, 'to_numpy_ndarray') else list(array.to_numpy())


def _array(row: Any) -> Any:
    numbers = getattr(row, 'values', None)
    return row.as_py() if numbers is None or numbers.null_count else numbers.to_numpy(zero_copy_only=False)


def _as_encoding(rows: Any, encoding: str) -> Any:
    """Arrays in the dtype of their encoding, and in its shape, where that changes no number."""
    _, dtype, shape = [*encoding.split(':'), '', ''][:3]
    if isinstance(rows, np.ndarray):
        return _cast(rows, dtype)
    sizes = tuple(int(size) for size in shape.split(',')) if shape else ()
    return [_shaped(_cast(row, dtype), sizes) if isinstance(row, np.ndarray) else row for row in rows]


def _shaped(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return array.reshape(shape) if shape and array.size == math.prod(shape) else array


def _cast(numbers: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if not dtype or dtype == numbers.dtype.name:
        return numbers
    with np.errstate(invalid='ignore', over='ignore'):
        cast = numbers.astype(dtype)
    return cast if np.array_equal(cast, numbers, equal_nan=numbers.dtype.kind == 'f') else numbers
