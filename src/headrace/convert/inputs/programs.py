"""Inputs that a program holds: a function over inputs, rows by number, and iterables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Protocol, cast

import numpy as np
import xxhash

from headrace.convert.apart import Place, places_in
from headrace.convert.inputs.samples import ENOUGH, to_sample
from headrace.convert.protocol import Sizes
from headrace.convert.tasks import Task
from headrace.errors import ConversionError
from headrace.format import mds_encode

__all__ = ['FunctionInputs', 'IterableSamples', 'RowInputs', 'RowSequence', 'measure']

_MEASURED: Final = 16
"""Rows that are read to estimate the size of all."""
_SUBSETS: Final = 4
"""Subsets of subsets through which the root of a dataset is looked for."""


class RowSequence(Protocol):
    """Rows by number, such as a list, or a map-style dataset of torch."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Any: ...


class FunctionInputs:
    """Inputs of a function that makes samples of each; see `Inputs`.

    Args:
        function: takes an input; returns a sample, an iterable of samples, or None for no sample.
        inputs: values that can be pickled, such as paths.
        names: columns of samples that are tuples.
    """

    kind = 'function'
    columns = None
    rows = None
    sizes = None
    files: Mapping[str, bytes] = {}
    reads_ahead = 1
    gives_batches = False

    def __init__(self, function: Callable[[Any], Any], inputs: Sequence[Any], *, names: Sequence[str]) -> None:
        self._function, self._inputs, self._names = function, inputs, names

    @property
    def identity(self) -> Mapping[str, object]:
        """The function's name."""
        return {'function': getattr(self._function, '__qualname__', type(self._function).__qualname__)}

    def places(self) -> Iterator[Place]:
        """All texts and paths in them."""
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
        """The input itself, if its text is short."""
        return f'input {number} ({self._inputs[number]!r:.200})'

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The samples of an input."""
        found = self._function(self._inputs[number])
        if found is None:
            return
        if isinstance(found, Mapping | tuple):
            yield to_sample(cast('object', found), self._names)
            return
        if isinstance(found, str | bytes) or not isinstance(found, Iterable):
            raise TypeError(
                f'The function returns a sample (a mapping), an iterable of samples, or None, but returned '
                f'{type(found).__name__}: {found!r:.100}.'
            )
        for sample in cast('Iterable[Any]', found):
            yield to_sample(sample, self._names)


class RowInputs:
    """Rows by number; see `Inputs`.

    Args:
        data: the rows: mappings, or tuples of values.
        names: columns of rows that are tuples.
        rows: number of rows to convert, from the first.
        sizes: estimate of their bytes.
        first: number of the first row.
        label: what messages call a row.
    """

    kind = 'rows'
    columns = None
    files: Mapping[str, bytes] = {}
    reads_ahead = 1
    gives_batches = False

    def __init__(
        self,
        data: RowSequence,
        *,
        names: Sequence[str],
        rows: int,
        sizes: Sizes | None = None,
        first: int = 0,
        label: str = 'row',
    ) -> None:
        self._data, self._names, self.rows, self.sizes, self._first, self._label = (
            data, names, rows, sizes, first, label,
        )  # fmt: skip

    @property
    def identity(self) -> Mapping[str, object]:
        """The type."""
        return {'type': type(self._data).__name__}

    def places(self) -> Iterator[Place]:
        """All texts and paths in rows in memory; else the root of a dataset of torchvision."""
        if isinstance(self._data, list | tuple):
            return places_in(cast('object', self._data))
        data: Any = self._data
        for _ in range(_SUBSETS):
            data = getattr(data, 'dataset', data)
        return places_in(getattr(data, 'root', None))

    def digest(self, begin: int, end: int) -> str | None:
        """None: nobody can tell whether rows are the same again."""
        del begin, end

    def __len__(self) -> int:
        return self.rows

    def name(self, number: int) -> str:
        """Its number."""
        return f'{self._label} {number}'

    def read(self, number: int) -> Iterable[Mapping[str, Any]]:
        """One sample."""
        return (to_sample(self._data[number - self._first], self._names),)

    def with_mean(self, mean: float | None) -> RowInputs:
        """The same with an estimate of their sizes; see `measure`."""
        sizes = None if mean is None else Sizes(mean=mean)
        return RowInputs(self._data, names=self._names, rows=self.rows, sizes=sizes)


def measure(
    rows: int, read: Callable[[int], Iterable[Mapping[str, Any]]], columns: Mapping[str, str], *, is_batch: bool = False
) -> float | None:
    """The mean bytes of a few rows that are spread over all; None if none can be read.

    Args:
        rows: number of all rows.
        read: gives a row.
        columns: the encodings.
        is_batch: whether `read` gives it as a batch of one row.
    """
    sizes: list[int] = []
    for number in np.unique(np.linspace(0, rows - 1, _MEASURED).astype(int)).tolist():
        try:
            for found in read(number):
                sample = {name: values[0] for name, values in found.items()} if is_batch else found
                values = (mds_encode(encoding, sample[name]) for name, encoding in columns.items())
                sizes.append(8 + sum(map(len, values)))
        except Exception:  # noqa: S112, PERF203 - whoever converts the row says so
            continue
    return sum(sizes) / len(sizes) if sizes else None


class IterableSamples:
    """Samples that only one process can read, one after another, once.

    Args:
        samples: mappings, or tuples of values.
        names: columns of samples that are tuples.
    """

    def __init__(self, samples: Iterable[Any], *, names: Sequence[str]) -> None:
        self._type, self._names = type(samples).__name__, names
        self._samples = _named_errors(samples)
        self._first = list(islice(self._samples, ENOUGH))

    @property
    def identity(self) -> Mapping[str, object]:
        """The type: nobody can tell whether an iterable gives the same samples again."""
        return {'type': self._type}

    @property
    def first(self) -> RowInputs:
        """The first samples."""
        return RowInputs(self._first, names=self._names, rows=len(self._first), label='sample')

    def places(self) -> Iterator[Place]:
        """Texts and paths in the first samples."""
        return self.first.places()

    def tasks(self, size: int | None) -> Iterator[Task]:
        """Tasks with samples of about ``size`` bytes each, or one with all, as they come.

        Raises:
            ConversionError: the iterable fails.
        """
        chunk: list[Any] = []
        number = begin = held = 0
        for sample in chain(self._first, self._samples):
            chunk.append(sample)
            held += _size(sample)
            if size is not None and held >= size:
                yield self._task(number, begin, chunk)
                number, begin, held, chunk = number + 1, begin + len(chunk), 0, []
        if chunk:
            yield self._task(number, begin, chunk)

    def _task(self, number: int, begin: int, samples: list[Any]) -> Task:
        end = begin + len(samples)
        rows = RowInputs(samples, names=self._names, rows=len(samples), first=begin, label='sample')
        return Task(number, begin, end, inputs=rows)


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
    """About the bytes of a value."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, cast('Mapping[Any, Any]', value).values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, cast('Sequence[Any]', value)))
    if hasattr(value, 'getbands'):
        return value.width * value.height * len(value.getbands())
    return int(getattr(value, 'nbytes', 8))
