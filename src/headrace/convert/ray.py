"""Ray Data and MDS: a sink that writes a dataset of Ray as MDS, and a source that reads MDS into one.

    columns = infer_dataset_schema(dataset)
    dataset.write_datasink(MDSDatasink('s3://bucket/data', columns=columns))
    dataset = read_mds('s3://bucket/data')

Each write task writes a part and returns its name. Ray hands the driver what one attempt of each task returned. So
failed and repeated attempts leave neither duplicates nor holes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.convert.parts import PartedDataset, PartWriter, WrittenPart, check_columns, columns_of, infer_columns
from headrace.convert.stored_dataset import without_erased
from headrace.dataset.writing.place import StorePlace
from headrace.dataset.writing.start import INDEX
from headrace.errors import ConfigError, MissingDependencyError
from headrace.format import ShardInfo, open_shard, parse_index, unpack_file, verify_file
from headrace.storage import Retry, Store, StoreOptions, download, open_store
from headrace.storage.output import Out

try:
    import pyarrow as pa
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask, WriteResult
    from ray.data.extensions import ArrowPythonObjectArray, ArrowTensorArray, ArrowVariableShapedTensorArray
except ImportError as missing:
    raise MissingDependencyError(
        f'headrace.convert.ray needs Ray Data, but {missing.name} is not installed: pip install "headrace[ray]".'
    ) from missing

__all__ = ['MDSDatasink', 'MDSDatasource', 'infer_dataset_schema', 'read_mds']

_BLOCK: Final = 1 << 26  # bytes of samples in a block of Ray, about


def infer_dataset_schema(dataset: ray.data.Dataset) -> dict[str, str]:
    """The encoding of each column of a dataset of Ray, for `MDSDatasink`. Ray may have to read its first block.

    The encodings are those of the same types in Parquet. Tensors are ``ndarray``, with their shape if it is fixed.

    Raises:
        ConfigError: the dataset has no schema, or a column of Python objects.
        FormatError: no encoding stores a column.
    """
    schema = dataset.schema()
    names: list[str] = [] if schema is None else schema.names
    if not names:
        raise ConfigError('A dataset of Ray has columns, but this one has none. Check that it is not empty.')
    types: list[Any] = schema.types  # pyright: ignore[reportOptionalMemberAccess] - there are names
    wrong = [name for name, kind in zip(names, types, strict=True) if not isinstance(kind, pa.DataType)]
    if wrong:
        raise ConfigError(
            f'Column {wrong[0]!r} of the dataset has no Arrow type, so no encoding can be inferred. Give `columns` of '
            f'MDSDatasink.'
        )
    return infer_columns(pa.schema(list(zip(names, types, strict=True))), source='the dataset')


class MDSDatasink(Datasink[WrittenPart]):
    """Writes a dataset of Ray as MDS: ``dataset.write_datasink(MDSDatasink(...))``.

    Parts come in the order of Ray's tasks. Ray keeps the order of rows if `preserve_order` of its execution options is
    set.

    Args:
        out: a folder that all machines share, a URL, or ``(folder, URL)`` with a folder of each machine.
        columns: encoding of each column; see `infer_dataset_schema`.
        merge_index: whether `out` gets one index of all parts. If not, each part is a dataset, with its own index.
        on_bad_sample: 'raise' for a sample with a value that its column cannot store, or 'skip' to leave it out.
        min_rows_per_write: Ray gives each task at least as many rows, where it can. Small parts make small shards.
        **kwargs: further arguments of `MDSWriter`.

    Attributes:
        samples: number of samples written, once the dataset is finished.
        skipped: number of samples left out.

    Raises:
        ConfigError: an argument breaks a rule, or is unknown.
    """

    def __init__(
        self,
        out: Out,
        *,
        columns: Mapping[str, str],
        merge_index: bool = True,
        on_bad_sample: str = 'raise',
        min_rows_per_write: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._merge_index = merge_index
        self._min_rows = min_rows_per_write
        self._dataset: PartedDataset | None = PartedDataset(out, columns, kwargs, on_bad_sample=on_bad_sample)
        self._writer: PartWriter | None = None
        self.samples = self.skipped = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), '_dataset': None}  # of the driver

    @property
    def min_rows_per_write(self) -> int | None:
        """See `Datasink.min_rows_per_write`."""
        return self._min_rows

    def on_write_start(self, schema: Any = None) -> None:  # noqa: ARG002 - may be that of the rows before a fused map
        """Claim `out`, on the driver.

        Raises:
            FileExistsError: it holds something, and `exist_ok` is not set; or another writer writes to it.
            StorageError: the store answered with an error.
        """
        assert self._dataset is not None
        self._writer = self._dataset.begin()

    def write(self, blocks: Iterable[Any], ctx: Any) -> WrittenPart:
        """Write the blocks of a task as a part.

        Raises:
            ConfigError: `columns` do not fit the blocks.
            KeyError, AttributeError, TypeError, ValueError, OverflowError: a column cannot store a value.
            StorageError: the store answered with an error.
        """
        writer = self._writer
        assert writer is not None, 'Ray calls on_write_start before any task'
        checked: Any = None
        with writer.open(ctx.task_idx) as part:
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if not table.num_rows:
                    continue
                if table.schema != checked:
                    check_columns(writer.columns, table.schema, source='the dataset')
                    checked = table.schema
                for batch in table.to_batches():
                    part.add_batch(columns_of(batch, writer.columns))
            return part.finish()

    def on_write_complete(self, write_result: WriteResult[WrittenPart]) -> None:
        """Make the dataset of the parts, on the driver.

        Raises:
            ConfigError: the dataset has no samples.
            StorageError: the store answered with an error.
        """
        assert self._dataset is not None
        parts = write_result.write_returns
        if self._writer is None:  # a dataset without blocks
            self.on_write_start()
        self._dataset.finish(parts, merge_index=self._merge_index)
        self.samples, self.skipped = sum(part.samples for part in parts), sum(part.skipped for part in parts)

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002 - Ray raises it
        """Delete all parts, on the driver. Call it after an interrupt, too, which Ray does not tell of."""
        if self._dataset is not None:
            self._dataset.abort()


def read_mds(
    remote: str,
    *,
    columns: Sequence[str] | None = None,
    validate_hash: str | None = None,
    allow_unsafe_types: bool = False,
    options: StoreOptions | None = None,
    **kwargs: Any,
) -> ray.data.Dataset:
    """Read an MDS dataset as one of Ray. Several shards make one read task.

    Scalars are numbers of Arrow, `str` and `bytes` text and binary values, and arrays are Ray's tensors. Values of
    other encodings are Python objects.

    Args:
        remote: folder or URL of the dataset, which all machines can read.
        columns: names of the columns to read. None: all.
        validate_hash: the hash of the index to check shards with. Sizes are always checked.
        allow_unsafe_types: whether to read pickled columns, which can run code.
        options: how to reach the store.
        **kwargs: of `ray.data.read_datasource`, such as `override_num_blocks` and `concurrency`.

    Raises:
        ConfigError: the data lack one of `columns`.
        FormatError: the index is damaged, or a column is unsafe.
        StorageError: the store answered with an error.
    """
    source = MDSDatasource(
        remote, columns=columns, validate_hash=validate_hash, allow_unsafe_types=allow_unsafe_types, options=options
    )
    return ray.data.read_datasource(source, **kwargs)


class MDSDatasource(Datasource):
    """The source behind `read_mds`, for `ray.data.read_datasource`."""

    def __init__(
        self,
        remote: str,
        *,
        columns: Sequence[str] | None = None,
        validate_hash: str | None = None,
        allow_unsafe_types: bool = False,
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__()
        store, retry = open_store(remote, options), Retry()
        index = StorePlace(store, retry).read(INDEX)
        table = parse_index(index, source=f'{store.url}/{INDEX}', allow_unsafe_types=allow_unsafe_types)
        self._shards = [shard for shard in table if shard.samples]
        names = self._shards[0].schema.names
        unknown = [name for name in columns or () if name not in names]
        if unknown:
            raise ConfigError(f'`columns` are columns of {store.url}, but {unknown[0]!r} is none of {list(names)}.')
        self._reader = _ShardSource(store, retry, None if columns is None else tuple(columns), validate_hash)

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all shards, unpacked."""
        return sum(map(_size, self._shards))

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ARG002 - of the base class
    ) -> list[ReadTask]:
        """Tasks that read runs of shards of about the same size; one for each shard at most."""
        sizes = np.cumsum([_size(shard) for shard in self._shards])
        share = sizes[-1] / max(1, parallelism)
        groups: dict[int, list[ShardInfo]] = {}
        for shard, end in zip(self._shards, sizes.tolist(), strict=True):
            groups.setdefault(int((end - _size(shard) / 2) / share), []).append(shard)
        return [self._task(group, per_task_row_limit) for group in groups.values()]

    def _task(self, shards: list[ShardInfo], row_limit: int | None) -> ReadTask:
        reader = self._reader
        metadata = BlockMetadata(
            num_rows=sum(shard.samples - len(shard.erasure.rows) for shard in shards),
            size_bytes=sum(map(_size, shards)),
            input_files=tuple(f'{reader.store.url}/{file.raw.basename}' for shard in shards for file in shard.files),
            exec_stats=None,
        )
        return ReadTask(lambda: reader.blocks(shards), metadata, per_task_row_limit=row_limit)


def _size(shard: ShardInfo) -> int:
    return sum(file.raw.bytes for file in shard.files)


@dataclass(frozen=True)
class _ShardSource:
    store: Store
    retry: Retry
    columns: tuple[str, ...] | None
    validate_hash: str | None

    def blocks(self, shards: Iterable[ShardInfo]) -> Iterator[pa.Table]:
        for shard in shards:
            reader = open_shard(
                shard,
                [memoryview(data) for data in self._files(shard)],
                source=f'{self.store.url}/{shard.name}',
                columns=self.columns,
            )
            rows_of_block = max(1, shard.samples * _BLOCK // max(1, _size(shard)))
            names = shard.schema.names if self.columns is None else self.columns
            for begin in range(0, shard.samples, rows_of_block):
                rows = without_erased(shard, np.arange(begin, min(begin + rows_of_block, shard.samples)))
                if not len(rows):
                    continue
                batch = shard.schema.allocate(len(rows), names)
                reader.gather(rows, np.arange(len(rows)), batch)
                encodings = shard.schema.columns
                yield pa.table({name: _arrow(batch.columns[name], encodings[name]) for name in names})

    def _files(self, shard: ShardInfo) -> list[bytes]:
        with tempfile.TemporaryDirectory(prefix='headrace-read-') as folder:
            contents: list[bytes] = []
            for number, file in enumerate(shard.files):
                stored = file.zip or file.raw
                path = Path(folder, str(number))
                with path.open('xb') as out:
                    download(self.store, stored.basename, out, self.retry, size=stored.bytes)
                verify_file(path, stored, self.validate_hash)
                if file.zip is not None:
                    assert shard.compression is not None
                    unpacked = path.with_suffix('.raw')
                    unpack_file(shard.compression, path, unpacked, file.raw.bytes)
                    path = unpacked
                contents.append(path.read_bytes())
            return contents


def _arrow(values: Any, encoding: str) -> Any:
    """A column of a batch as an Arrow array, of one type for all blocks."""
    if isinstance(values, np.ndarray):
        return pa.array(values) if values.ndim == 1 else ArrowTensorArray.from_numpy(values)
    kind = encoding.partition(':')[0]
    if kind in {'str', 'bytes'}:
        return pa.array(values, pa.string() if kind == 'str' else pa.binary())
    if kind == 'int':  # of JSONL shards; those of `str_int` have any size
        return pa.array(values, pa.int64())
    if kind in {'str_float', 'float'}:
        return pa.array(values, pa.float64())
    if kind == 'ndarray' and len({array.ndim for array in values}) == 1 and len({array.dtype for array in values}) == 1:
        return ArrowVariableShapedTensorArray.from_numpy(values)
    return ArrowPythonObjectArray.from_objects(values)
