"""The same samples in other shards: of another size or compression, with fewer columns, in another order.

Values are copied as they are stored, so no image is encoded twice and no pickle runs. For a shuffle each row goes to a
random bucket, a file without a name, and each bucket is then shuffled in memory. Every order is equally likely.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final, Literal, cast, get_args

import numpy as np

from headrace.convert.apart import lies_in
from headrace.convert.stored_dataset import (
    PATIENT,
    StoredDataset,
    open_stored,
    raw_files,
    with_stored_values,
    without_erased,
)
from headrace.dataset.writing.writer import MDSWriter, Writer
from headrace.errors import ConfigError
from headrace.errors.redaction import warn, without_credentials
from headrace.format import ShardInfo, bytes_to_int, mds_encode, open_shard
from headrace.format.costs import stored_costs
from headrace.format.shards import IntArray
from headrace.storage import StoreOptions, open_store
from headrace.storage.output import Out, split_out
from headrace.storage.transfer.download import GeneratorPool

ReshardOrder = Literal['stored', 'shuffled']
Columns = Mapping[str, 'Sequence[Any] | np.ndarray[Any, Any]']
_AS_MDS: Final = {'str': 'str', 'int': 'int', 'float': 'float64'}
"""The MDS encodings of the columns of JSONL, CSV and TSV."""
_AHEAD: Final = 3  # shards that are fetched and unpacked ahead
_BLOCK_BYTES: Final = 8 << 20
_MOST_BUCKETS: Final = 256  # each is an open file
_SAME: Final = 'same'


@dataclass(frozen=True)
class ReshardReport:
    """The result of `reshard`."""

    source: str
    out: str
    samples: int
    erased: int
    """Erased samples of the source, which are left out."""
    columns: tuple[str, ...]
    order: ReshardOrder

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), 'columns': list(self.columns)}


def reshard(
    source: str | os.PathLike[str],
    out: Out,
    *,
    size_limit: int | str | None = _SAME,
    compression: str | None = _SAME,
    hashes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    order: ReshardOrder = 'stored',
    seed: int = 0,
    shuffle_memory: int | str = '128mb',
    exist_ok: bool = False,
    resume: bool = False,
    source_options: StoreOptions | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReshardReport:
    """Write a dataset again as MDS shards. If the first one stores the costs of a column, so do all new ones.

    Args:
        source: a folder, or a URL of a store, with a dataset of MDS, JSONL, CSV or TSV shards.
        out: a folder, a URL, or both as ``(folder, URL)``.
        size_limit: bytes of a shard before compression, as a number or text ('32mb'); 'same': as the source's.
        compression: algorithm with or without a level ('zstd:3'); None: none; 'same': as the source's.
        hashes: names of hashes to store in the index. By default as the source's.
        columns: names of the columns to keep. None: all.
        order: 'stored', or 'shuffled', which needs disk space for the raw data in the folder for temporary files.
        seed: of the shuffle. The same seed and `shuffle_memory` give the same order.
        shuffle_memory: bytes of raw data that the shuffle holds in memory at one time, as a number or text.
        exist_ok: empty `out` if it holds something.
        resume: continue a killed call with the same arguments behind its whole shards. A finished one stays.
        source_options: how to reach the source.
        options: how to reach `out`.
        progress: called with the numbers of written samples and of all.

    Raises:
        ConfigError: an argument breaks a rule; shards differ in the encoding of a column; or `resume` finds samples of
            another call.
        FileExistsError: `out` holds something, or another writer writes to it.
        FileNotFoundError: the source has no index, or lacks a file.
        FormatError: a shard is damaged.
        OSError: a store cannot be reached, or refuses.
    """
    if order not in get_args(ReshardOrder):
        raise ConfigError(f'`order` must be one of {", ".join(get_args(ReshardOrder))}, but is {order!r}.')
    places = [os.fspath(place) for place in split_out(out) if place is not None]
    for place in places:
        if lies_in(source, place):
            raise ConfigError(f'`out` must be another place than the source {os.fspath(source)}, but is {place}.')
    dataset = open_stored(source, source_options)
    encodings = _encodings(dataset, columns)
    kind = dataset.shards.kinds[0]
    erased = dataset.shards.num_erased
    total = int(dataset.shards.samples.sum()) - erased
    if size_limit == _SAME:
        size_limit = kind.size_limit
    first_info = next((info for info in dataset.shards if info.samples), None)
    cost = None
    if first_info is not None and first_info.format == 'mds':
        first_cost = _stored_cost(first_info, raw_files(dataset.store, first_info))
        cost = first_cost if first_cost in encodings else None
    with MDSWriter(
        columns=encodings,
        out=out,
        compression=kind.compression if compression == _SAME else compression,
        hashes=list(kind.hashes) if hashes is None else sorted(hashes),
        size_limit=size_limit,
        cost=cost,
        exist_ok=exist_ok,
        resume=resume,
        options=options,
    ) as writer:
        meanings = [meaning for schema in dataset.shards.schemas for meaning in schema.meaning_of.items()]
        writer.meanings = {name: meaning for name, meaning in meanings if name in encodings}
        names, written = list(encodings), writer.num_samples
        first = max(0, written - 1)
        if order == 'stored':
            batches = _stored(dataset, cost, names, first)
        else:
            batches = _shuffled(dataset, cost, names, first, seed=seed, memory=bytes_to_int(shuffle_memory))
        if written:
            batches = _behind(batches, writer, encodings, options)
        for batch in batches:
            writer.write_batch(batch)
            written += len(batch[names[0]])
            if progress is not None:
                progress(written, total)
    return ReshardReport(
        source=without_credentials(os.fspath(source)),
        out=without_credentials('; '.join(places)),
        samples=written,
        erased=erased,
        columns=tuple(encodings),
        order=order,
    )


def _encodings(dataset: StoredDataset, columns: Sequence[str] | None) -> dict[str, str]:
    """The MDS encoding of each column to write, which all shards agree on."""
    encodings: dict[str, str] = {}
    schemas = dataset.shards.schemas
    if not schemas:
        raise ConfigError(f'A dataset without shards has no columns to write again: {dataset.store.url}.')
    wanted = list(schemas[0].names) if columns is None else list(columns)
    if not wanted:
        raise ConfigError('`columns` must name at least one column, but is empty.')
    for schema in schemas:
        for name in wanted:
            if name not in schema.names:
                raise ConfigError(f'There is no column {name!r} in all shards; one has {", ".join(schema.names)}.')
            encoding = schema.columns[name] if schema.format == 'mds' else _AS_MDS[schema.columns[name]]
            if encodings.setdefault(name, encoding) != encoding:
                raise ConfigError(
                    f'Shards written together have the same encodings, but column {name!r} is '
                    f'{encodings[name]} in one and {encoding} in another. Leave it out of `columns`.'
                )
    return encodings


def _stored_cost(info: ShardInfo, buffers: Sequence[memoryview]) -> str | None:
    """The column whose costs a shard stores."""
    cost = stored_costs(info, lambda size: bytes(buffers[0][:size])) if info.format == 'mds' else None
    return None if cost is None else cost[0]


def _behind(
    batches: Iterator[Columns], writer: Writer, encodings: Mapping[str, str], options: StoreOptions | None
) -> Iterator[Columns]:
    """The batches without their first row, which must be the last one that the killed call has stored."""
    info = writer.shards_before[-1]
    store = open_store(writer.remote or writer.local, options)
    last = _rows(info, raw_files(store, info), list(encodings), np.array([info.samples - 1]))
    batch = next(batches)
    if _stored_row(batch, encodings) != _stored_row(last, encodings):
        raise ConfigError(
            f'`resume` (--resume) continues a call with the same source and arguments, but sample '
            f'{writer.num_samples - 1} of {writer.remote or writer.local} is another one. Give the same arguments, or '
            f'begin anew with `exist_ok` (--overwrite).'
        )
    rest = {name: values[1:] for name, values in batch.items()}
    if len(rest[next(iter(encodings))]):
        yield rest
    yield from batches


def _stored_row(batch: Columns, encodings: Mapping[str, str]) -> list[bytes]:
    values = ((encodings[name], batch[name][0]) for name in encodings)
    return [
        np.asarray(value).tobytes() if isinstance(value, np.ndarray | np.generic) else mds_encode(encoding, value)
        for encoding, value in values
    ]


def _stored(dataset: StoredDataset, cost: str | None, names: Sequence[str], first: int) -> Iterator[Columns]:
    """The samples as they are stored, in batches, from a sample on; erased ones are left out and do not count."""
    counts = dataset.shards.samples.copy()
    for shard, erasure in dataset.shards.erased.items():
        counts[shard] -= len(erasure.rows)
    ends = np.cumsum(counts)
    begin = int(ends.searchsorted(first, 'right'))
    skipped = first - int(ends[begin - 1] if begin else 0)
    for info, buffers in _raw_shards(dataset, cost, begin):
        rows = max(1, _BLOCK_BYTES * info.samples // max(1, info.files[0].raw.bytes))
        kept = without_erased(info, np.arange(info.samples))
        for start in range(skipped, len(kept), rows):
            yield _rows(info, buffers, names, kept[start : start + rows])
        skipped = 0


def _raw_shards(
    dataset: StoredDataset, cost: str | None, begin: int = 0
) -> Iterator[tuple[ShardInfo, list[memoryview]]]:
    """The shards with samples in order, from a shard on; the next ones are fetched and unpacked meanwhile.

    Warns of a shard that stores the costs of another column than `cost`.
    """
    shards = (info for number in range(begin, len(dataset.shards)) if (info := dataset.shards[number]).samples)
    lost: set[str] = set()

    def checked(info: ShardInfo, future: Future[list[memoryview]]) -> tuple[ShardInfo, list[memoryview]]:
        buffers = future.result()
        stored = _stored_cost(info, buffers)
        if stored not in (None, cost, *lost):
            lost.add(stored)
            warn(
                f'Shards of {dataset.store.url} store the costs of the column {stored!r}, which the new ones lack: '
                f'they keep those of the first shard, if their column is kept. `headrace convert --cost` writes any.'
            )
        return info, buffers

    with GeneratorPool(_AHEAD, thread_name_prefix='headrace-reshard') as pool:
        ahead: list[tuple[ShardInfo, Future[list[memoryview]]]] = []
        for info in shards:
            ahead.append((info, pool.submit(raw_files, dataset.store, info, PATIENT)))
            if len(ahead) > _AHEAD:
                yield checked(*ahead.pop(0))
        yield from (checked(*piece) for piece in ahead)


def _rows(info: ShardInfo, buffers: list[memoryview], names: Sequence[str], rows: IntArray) -> Columns:
    stored = with_stored_values(info)
    batch = stored.schema.allocate(len(rows), names)
    open_shard(stored, buffers, source=info.name, columns=names).gather(rows, np.arange(len(rows)), batch)
    columns: dict[str, Sequence[Any] | np.ndarray[Any, Any]] = dict(batch.columns)
    for number, name in enumerate(info.schema.names):
        if name in columns and info.format == 'mds' and info.schema.arrays[number] is None:
            columns[name] = [value if isinstance(value, bytes) else value.tobytes() for value in columns[name]]
    return columns


def _shuffled(
    dataset: StoredDataset, cost: str | None, names: Sequence[str], first: int, *, seed: int, memory: int
) -> Iterator[Columns]:
    """The samples in a random order, in batches, from a place on."""
    rng = np.random.Generator(np.random.PCG64(seed))
    count = min(_MOST_BUCKETS, math.ceil(dataset.shards.raw_bytes().sum() / max(1, memory)) or 1)
    with ExitStack() as stack:
        files = [cast('BinaryIO', stack.enter_context(tempfile.TemporaryFile())) for _ in range(count)]
        for info, buffers in _raw_shards(dataset, cost):
            bucket_of = rng.integers(0, count, info.samples)
            for number, file in enumerate(files):
                rows = without_erased(info, np.flatnonzero(bucket_of == number))
                if len(rows):
                    pickle.dump(_rows(info, buffers, names, rows), file, protocol=5)
        for file in files:
            columns = _read_bucket(file, names)
            order = rng.permutation(len(columns[names[0]]))
            rows, first = order[first:], max(0, first - len(order))
            if len(rows):
                yield {name: _permuted(values, rows) for name, values in columns.items()}


def _read_bucket(file: BinaryIO, names: Sequence[str]) -> Columns:
    end = file.tell()
    file.seek(0)
    parts: list[Columns] = []
    while file.tell() < end:
        parts.append(pickle.load(file))  # noqa: S301 - written above, to a file that nobody else can open
    return {name: _joined([part[name] for part in parts]) for name in names}


def _joined(parts: list[Sequence[Any] | np.ndarray[Any, Any]]) -> Sequence[Any] | np.ndarray[Any, Any]:
    if parts and isinstance(parts[0], np.ndarray):
        return np.concatenate(cast('list[np.ndarray[Any, Any]]', parts))
    return [value for part in parts for value in part]


def _permuted(
    values: Sequence[Any] | np.ndarray[Any, Any], order: np.ndarray[Any, np.dtype[np.int64]]
) -> Sequence[Any] | np.ndarray[Any, Any]:
    return values[order] if isinstance(values, np.ndarray) else [values[i] for i in order.tolist()]
