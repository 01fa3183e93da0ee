"""Shards as a `datasets.IterableDataset` of Hugging Face, read as they come, without a copy on disk."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from headrace.convert.stored_dataset import (
    PATIENT,
    StoredDataset,
    open_stored,
    raw_files,
    with_stored_values,
    without_erased,
)
from headrace.errors import ConfigError, EmptyDatasetError, MissingDependencyError
from headrace.format import ShardInfo, open_shard
from headrace.format.encodings.registry import fixed_array_type, get_mds_encoding, is_mds_encoding_safe
from headrace.storage import StoreOptions

_NUMBERS: Final = {'int': 'int64', 'str_int': 'int64', 'str_float': 'float64', 'float': 'float64'}
_TEXTS: Final = ('str', 'json', 'str_decimal')
_FILES: Final = ('jpeg', 'png')  # encodings whose stored bytes are files of images
_MOST_AXES: Final = 5  # of an array in Hugging Face's features


def to_hugging_face(
    remote: str | os.PathLike[str],
    *,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    features: Any = None,
    options: StoreOptions | None = None,
) -> Any:
    """Read a dataset of shards with Hugging Face's library.

    Each shard is a shard of the result. So `shuffle`, `shard`, `split_dataset_by_node` and a loader's workers divide
    them. A `state_dict` continues in the middle of one. A shard is fetched when it is needed, and checked as the index
    says. It leaves no file. The order is Hugging Face's; nothing of headrace's order applies.

    Args:
        remote: folder or URL of the dataset.
        split: its sub-folder that holds index.json.
        columns: names of the columns to read; None: all.
        features: a `datasets.Features` for these columns; by default those that fit the columns. Columns of JSON are
            then their text, since its types may differ from row to row; with `features`, they are the values.
        options: how to reach the store.

    Returns:
        A `datasets.IterableDataset`. Images are `datasets.Image` with the bytes of the stored files.

    Raises:
        ConfigError: no feature suits a column, or a column is missing.
        ObjectNotFoundError, FormatError, StorageError: the index cannot be read.
        EmptyDatasetError: it has no rows.
        MissingDependencyError: `datasets` is not installed.
    """
    try:
        from datasets import IterableDataset
    except ImportError as error:
        raise MissingDependencyError(
            'A dataset of Hugging Face needs its library, which is not installed: pip install datasets'
        ) from error
    place = os.fspath(remote) if split is None else f'{os.fspath(remote).rstrip("/")}/{split}'
    rows = _Rows(place, options or StoreOptions(), has_features=features is not None)
    stored = rows.open()
    filled = (n for n, info in enumerate(stored.shards) if info.samples > len(info.erasure.rows))
    number = next(filled, None)
    if number is None:
        raise EmptyDatasetError(f'A dataset to read has rows, but {stored.store.url} has none. Check `split`.')
    first = stored.shards[number]
    names = list(first.schema.names if columns is None else columns)
    missing = [name for name in names if name not in first.schema.names]
    if missing:
        raise ConfigError(f'{stored.store.url} has the columns {list(first.schema.names)}, but not {missing[0]!r}.')
    encodings = first.schema.columns
    for name in names:
        # Before the first row is read.
        if first.format == 'mds' and not is_mds_encoding_safe(encodings[name]):
            raise ConfigError(
                f'Column {name!r} holds pickles ({encodings[name]}), which can run code. Leave it out with `columns`, '
                f'or write it as another encoding.'
            )
    rows.columns = tuple((name, encodings[name]) for name in names)
    if features is None:
        sample = next(rows([number]))
        features = _features(rows.columns, sample)
    return IterableDataset.from_generator(
        rows, features=features, gen_kwargs={'shards': list(range(len(stored.shards)))}
    )


class _Rows:
    """A generator of the rows of some shards; picklable, so that each worker has its own."""

    def __init__(self, url: str, options: StoreOptions, *, has_features: bool) -> None:
        self._url, self._options, self._has_features = url, options, has_features
        self.columns: tuple[tuple[str, str], ...] = ()  # name and encoding of each, the same in all shards
        self._stored: tuple[int, StoredDataset] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_stored': None}

    def open(self) -> StoredDataset:
        if self._stored is None or self._stored[0] != os.getpid():
            self._stored = (os.getpid(), open_stored(self._url, self._options))
        return self._stored[1]

    def __call__(self, shards: Sequence[int]) -> Iterator[dict[str, Any]]:
        stored = self.open()
        for number in shards:
            yield from self._rows(stored, stored.shards[number])

    def _rows(self, stored: StoredDataset, info: ShardInfo) -> Iterator[dict[str, Any]]:
        has = info.schema.columns
        name = info.name
        for column, encoding in self.columns:
            if has.get(column) != encoding:
                raise ConfigError(
                    f'All shards have the same columns for Hugging Face, but {column!r} is {encoding} in the first '
                    f'one and {has.get(column, "missing")} in {name}. Select others with `columns`.'
                )
        if not info.samples:
            return
        names = [column for column, _ in self.columns]
        # Images and texts of JSON stay bytes: none is decoded here to be encoded again.
        raw = with_stored_values(info, lambda encoding: encoding not in _FILES and not self._is_raw_text(encoding))
        reader = open_shard(raw, raw_files(stored.store, info, PATIENT), source=name, columns=names)
        pictures = [column for column, encoding in self.columns if encoding == 'pil' and info.format == 'mds']
        texts = [column for column, encoding in self.columns if self._is_raw_text(encoding) and info.format == 'mds']
        files = [column for column, encoding in self.columns if encoding in _FILES and info.format == 'mds']
        for i in without_erased(info, np.arange(info.samples)).tolist():
            sample = reader.sample(i)
            for column in pictures:
                sample[column] = _png(sample[column])
            for column in files:
                sample[column] = {'bytes': sample[column], 'path': None}
            for column in texts:
                sample[column] = sample[column].decode()
            yield {column: sample[column] for column in names}

    def _is_raw_text(self, encoding: str) -> bool:
        return encoding == 'str_decimal' or (encoding == 'json' and not self._has_features)


def _png(image: Any) -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, 'PNG')
    return {'bytes': file.getvalue(), 'path': None}


def _features(columns: Sequence[tuple[str, str]], sample: Mapping[str, Any]) -> Any:
    from datasets import Features

    return Features({name: _feature(name, encoding, sample[name]) for name, encoding in columns})


def _feature(name: str, encoding: str, value: Any) -> Any:
    """The feature of a column, for arrays without a declared shape by their first value."""
    import datasets

    if encoding in _NUMBERS:
        return datasets.Value(_NUMBERS[encoding])
    if encoding in _TEXTS:
        return datasets.Value('string')
    if encoding == 'bytes':
        return datasets.Value('binary')
    if encoding in _FILES or encoding == 'pil':
        return datasets.Image()
    fixed = fixed_array_type(encoding)
    if fixed is not None and len(fixed[1]) <= _MOST_AXES:
        dtype, shape = fixed[0].name, fixed[1]
        if len(shape) > 1:
            return getattr(datasets, f'Array{len(shape)}D')(shape=shape, dtype=dtype)
        return datasets.Sequence(datasets.Value(dtype), length=shape[0]) if shape else datasets.Value(dtype)
    if fixed is None and isinstance(value, np.ndarray):
        feature: Any = datasets.Value(value.dtype.name)
        for _ in value.shape:
            feature = datasets.Sequence(feature)
        return feature
    raise ConfigError(
        f'No feature of Hugging Face suits column {name!r} of encoding {encoding}, a '
        f'{get_mds_encoding(encoding).kind}. Leave it out with `columns`, or give `features`.'
    )
