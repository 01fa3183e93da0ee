"""Inputs that a program holds: a function over inputs, rows by number, datasets of Hugging Face, and iterables."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, cast

import numpy as np
import xxhash

from headrace.convert.inputs.records import Inputs, Place, Sizes, classes_file, places_in
from headrace.dataset.writing.columns import infer_columns
from headrace.errors import ConversionError, FormatError
from headrace.errors.mapping import panics_as
from headrace.format import mds_encode
from headrace.sources.arrow_types import arrow_columns, class_names, import_pyarrow, meanings_of, to_columns
from headrace.sources.formats import refuse_null_files
from headrace.sources.ledger import Ledger

ENOUGH: Final = 16  # Samples that tell the columns.
_MEASURED: Final = 16  # Rows for the estimate of all sizes.
_SUBSETS: Final = 4  # Depth of the search for the root of nested subsets.
_BLOCK: Final = 4 << 20  # Approximate bytes of a block of Hugging Face's rows.
_MAX_ROWS: Final = 4096  # Rows of a block.


class FunctionInputs(Inputs):
    """Inputs of which a function makes a sample, an iterable of samples, or None; `names`: columns of tuples."""

    kind = 'function'

    def __init__(self, function: Callable[[Any], Any], inputs: Sequence[Any], *, names: Sequence[str]) -> None:
        self._function, self._inputs, self._names = function, inputs, names
        self.identity = {'function': getattr(function, '__qualname__', type(function).__qualname__)}

    def places(self) -> Iterator[Place]:
        return places_in(self._inputs)

    def digest(self, begin: int, end: int) -> str | None:
        """Of JSON or paths; None for other inputs, whose text differs from process to process."""
        hashed = xxhash.xxh3_128()
        try:
            for value in self._inputs[begin:end]:
                hashed.update(json.dumps(value, sort_keys=True, default=os.fspath).encode('utf-8', 'surrogatepass'))
        except (TypeError, ValueError):
            return None
        return hashed.hexdigest()

    def __len__(self) -> int:
        return len(self._inputs)

    def name(self, number: int) -> str:
        return f'input {number} ({self._inputs[number]!r:.200})'

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        with panics_as(FormatError):
            samples = self._function(self._inputs[number])
        if samples is None:
            return
        if isinstance(samples, Mapping | tuple):
            yield _to_sample(cast('object', samples), self._names)
            return
        if isinstance(samples, str | bytes) or not isinstance(samples, Iterable):
            raise TypeError(
                f'The function returns a sample (a mapping), an iterable of samples, or None, but returned '
                f'{type(samples).__name__}: {samples!r:.100}.'
            )
        for sample in cast('Iterable[Any]', samples):
            yield _to_sample(sample, self._names)


class RowInputs(Inputs):
    """Rows by number, as in a list: mappings, or tuples, whose columns are `names`."""

    kind = 'rows'

    def __init__(self, data: Any, *, names: Sequence[str], rows: int, first: int = 0, label: str = 'row') -> None:
        self._data, self._names, self._count, self.first, self._label = data, names, rows, first, label
        self.rows = rows
        self.identity = {'type': type(data).__name__}

    def places(self) -> Iterator[Place]:
        """All texts and paths in rows in memory; else the root of a dataset of torchvision."""
        if isinstance(self._data, list | tuple):
            return places_in(cast('object', self._data))
        data: Any = self._data
        for _ in range(_SUBSETS):
            data = getattr(data, 'dataset', data)
        return places_in(getattr(data, 'root', None))

    def __len__(self) -> int:
        return self._count

    def name(self, number: int) -> str:
        return f'{self._label} {number}'

    def read(self, number: int) -> Iterable[Mapping[str, Any]]:
        with panics_as(FormatError):
            row = self._data[number - self.first]
        return (_to_sample(row, self._names),)

    def with_mean(self, mean: float | None) -> RowInputs:
        copied = copy.copy(self)
        copied.sizes = None if mean is None else Sizes(mean=mean)
        return copied


def is_hugging_face(source: object) -> bool:
    return any(
        kind.__module__ == 'datasets.arrow_dataset' and kind.__name__ == 'Dataset' for kind in type(source).__mro__
    )


def is_transformed(dataset: Any) -> bool:
    return dataset.format['type'] == 'custom'


class HuggingFaceInputs(Inputs):
    """The rows of a `datasets.Dataset`, a block each, read as `sources.arrow_types` does. Images stay encoded."""

    kind = 'huggingface'
    gives_batches = True

    def __init__(self, dataset: Any, *, columns: Collection[str] | None, limit: int | None) -> None:
        import_pyarrow('Datasets of Hugging Face')
        self._data = dataset.with_format('arrow')
        self.rows = self._count = min(len(dataset), limit or len(dataset))
        schema = dataset.features.arrow_schema
        nulls = [name for name in schema.names if _has_nulls(dataset.data.column(name))]
        self._with_nulls = nulls
        self._has_files = any(_has_files(feature) for feature in dataset.features.values())
        self._schema = schema
        read_columns = arrow_columns(schema, columns=columns, with_nulls=nulls, source='the dataset')
        self.columns = encodings = {name: column.encoding for name, column in read_columns.items()}
        refuse_null_files(encodings, nulls, source='the dataset')
        self.meanings = meanings_of(encodings, schema)
        self.ledger = Ledger(dropped=tuple(name for name in schema.names if name not in read_columns))
        names, self._names = class_names(schema), list(encodings)
        self.files = classes_file({name: names[name] for name in encodings if name in names})
        self.identity = {'rows': self._count, 'columns': str(schema.remove_metadata())}
        found_mean = measure(self._count, lambda row: self._columns(row, row + 1), encodings, is_batch=True)
        mean = 64.0 if found_mean is None else found_mean
        self._step = min(max(int(_BLOCK / mean), 1), _MAX_ROWS)
        self.sizes = Sizes(mean=mean * self._step)

    def places(self) -> Iterator[str]:
        yield from (file['filename'] for file in self._data.cache_files)
        for name, feature in self._data.features.items():
            if hasattr(feature, 'embed_storage'):
                for chunk in self._data.data.column(name).chunks:
                    yield from filter(None, chunk.field('path').to_pylist())

    def __len__(self) -> int:
        return (self._count + self._step - 1) // self._step

    def name(self, number: int) -> str:
        return f'rows {number * self._step} to {min((number + 1) * self._step, self._count) - 1} of the dataset'

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        return self._columns(number * self._step, min((number + 1) * self._step, self._count))

    def _columns(self, begin: int, end: int) -> Iterator[Mapping[str, Any]]:
        table = self._data[begin:end]
        if self._has_files:
            # Files that the dataset only names are read now.
            from datasets.table import embed_table_storage

            table = embed_table_storage(table.cast(self._schema))
        columns = arrow_columns(self._schema, columns=self._names, with_nulls=self._with_nulls, source='the dataset')
        for batch in table.combine_chunks().to_batches():
            yield to_columns(batch, columns, source='the dataset', first_row=begin)
            begin += batch.num_rows


def _has_nulls(column: Any) -> bool:
    """Whether an Arrow column has nulls or empty lists, which arrays of MDS cannot be."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        return True
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    return (
        is_list
        and len(column) > 0
        and pc.call_function('min', [pc.call_function('list_value_length', [column])]).as_py() == 0
    )


def _has_files(feature: Any) -> bool:
    inner = getattr(feature, 'feature', feature[0] if isinstance(feature, list) and feature else None)
    return hasattr(feature, 'embed_storage') or (inner is not None and _has_files(inner))


class IterableSamples:
    """Samples that only one process can read, one after another, once; tuples have the columns `names`."""

    kind = 'iterable'

    def __init__(self, samples: Iterable[Any], *, names: Sequence[str]) -> None:
        self._names = names
        # Nobody can tell whether an iterable gives the same samples again.
        self.identity: Mapping[str, object] = {'type': type(samples).__name__}
        self._samples = _named_errors(samples)
        self._first = list(islice(self._samples, ENOUGH))

    @property
    def first(self) -> RowInputs:
        return self._rows(self._first, 0)

    def places(self) -> Iterator[Place]:
        return self.first.places()

    def chunks(self, size: int | None) -> Iterator[RowInputs]:
        """Samples of about ``size`` bytes each, or all at once, as they come."""
        chunk: list[Any] = []
        begin = held = 0
        for sample in chain(self._first, self._samples):
            chunk.append(sample)
            held += _size(sample)
            if size is not None and held >= size:
                yield self._rows(chunk, begin)
                begin, held, chunk = begin + len(chunk), 0, []
        if chunk:
            yield self._rows(chunk, begin)

    def _rows(self, samples: list[Any], first: int) -> RowInputs:
        return RowInputs(samples, names=self._names, rows=len(samples), first=first, label='sample')


def measure(
    rows: int, read: Callable[[int], Iterable[Mapping[str, Any]]], columns: Mapping[str, str], *, is_batch: bool = False
) -> float | None:
    """The mean bytes of a few rows that are spread over all; None if none can be read."""
    sizes: list[int] = []
    for number in np.unique(np.linspace(0, rows - 1, _MEASURED).astype(int)).tolist():
        try:
            for row in read(number):
                sample = {name: values[0] for name, values in row.items()} if is_batch else row
                values = (mds_encode(encoding, sample[name]) for name, encoding in columns.items())
                sizes.append(8 + sum(map(len, values)))
        except Exception:  # noqa: S112, PERF203 - the conversion of the row says so
            continue
    return sum(sizes) / len(sizes) if sizes else None


def columns_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The encodings that suit samples. Arrays get a fixed shape only if enough samples have it."""
    inferred = infer_columns(samples)
    if len(samples) >= ENOUGH:
        return inferred
    return {name: ':'.join(encoding.split(':')[:2]) for name, encoding in inferred.items()}


def _to_sample(row: object, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        sample = cast('Mapping[str, Any]', row)
        return {name: _plain(value) for name, value in sample.items()}
    if isinstance(row, tuple) and len(cast('tuple[Any, ...]', row)) == len(names):
        values = cast('tuple[Any, ...]', row)
        return {name: _plain(value) for name, value in zip(names, values, strict=True)}
    of_names = f'or a tuple of {len(names)} values for {list(names)}'
    raise TypeError(
        f'A sample is a mapping from column to value, {of_names if names else "or a tuple"}, but is '
        f"{type(row).__name__}: {row!r:.100}. Name the values of tuples as in columns=['image', 'label']."
    )


def _plain(value: Any) -> Any:
    """A tensor as an array, one without axes as a number; everything else as it is."""
    if not hasattr(value, 'detach'):
        return value
    return value.item() if value.dim() == 0 else value.detach().cpu().numpy()


def _named_errors(samples: Iterable[Any]) -> Iterator[Any]:
    """The samples; an error of the iterable is a `ConversionError` with their number."""
    done = 0
    try:
        for sample in samples:
            yield sample
            done += 1
    except Exception as error:
        raise ConversionError(
            f'The iterable of samples failed after {done} samples with {type(error).__name__}: {error}. Correct it '
            f'and run the conversion again: finished tasks are kept.'
        ) from error


def _size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, cast('Mapping[Any, Any]', value).values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, cast('Sequence[Any]', value)))
    if hasattr(value, 'getbands'):
        return value.width * value.height * len(value.getbands())
    return int(getattr(value, 'nbytes', 8))
