"""Spark DataFrames to MDS.

Each task writes a part, and its result tells the driver which one. Spark returns the result of one attempt for each
partition. So failed, repeated, speculative and lost attempts leave neither duplicates nor holes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.convert.parts import PartedDataset, PartWriter, WrittenPart, check_columns, columns_of, infer_columns
from headrace.errors import ConfigError, MissingDependencyError
from headrace.errors.redaction import logger_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

logger = logger_of(__name__)

Udf = Callable[..., Iterable[Mapping[str, Any]]]

_FIELDS: Final = ('number', 'name', 'samples', 'skipped', 'reason', 'index')
_RESULT: Final = 'number long, name string, samples long, skipped long, reason string, index binary'


def dataframe_to_mds(
    dataframe: DataFrame,
    merge_index: bool = True,
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Udf | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
    *,
    on_bad_sample: str = 'raise',
) -> tuple[tuple[str, str], int]:
    """Write a Spark DataFrame as an MDS dataset: each partition is a part, in the order of the partitions.

    The arguments are those of MosaicML Streaming.

    Args:
        dataframe: the samples. A partition that is computed twice must give the same rows.
        merge_index: whether `out` gets one index of all parts. If not, each part is a dataset, with its own index.
        mds_kwargs: arguments of `MDSWriter`. `out` is needed: a folder that driver and executors share, a URL, or
            ``(folder, URL)`` with a folder of each machine. `columns` is inferred if it is not given, see
            `infer_dataframe_schema`. `compression` is 'zstd' if it is not given.
        udf_iterable: called as ``udf_iterable(pdf, **udf_kwargs)`` with rows of a partition as a pandas DataFrame.
            Returns samples as dicts. It needs `columns`.
        udf_kwargs: further arguments of `udf_iterable`.
        on_bad_sample: 'raise' for a sample with a value that its column cannot store, or 'skip' to leave it out.

    Returns:
        The folder and the URL of the dataset, each '' if there is none; and the number of samples that were left out.

    Raises:
        ConfigError: an argument breaks a rule, a column has no encoding, samples are missing, or `exist_ok` would
            delete files of the DataFrame.
        FileExistsError: `out` holds something, and `exist_ok` is not set; or another writer writes to it.
        MissingDependencyError: pyspark, pyarrow or pandas is not installed.
        pyspark.errors.PySparkException: a task failed. All parts are deleted.
    """
    _check_installed('pyspark', 'pyarrow', *(['pandas'] if udf_iterable is not None else []))
    kwargs = dict(mds_kwargs or {})
    _check_arguments(dataframe, kwargs, udf_iterable)
    out, columns = kwargs.pop('out'), kwargs.pop('columns', None)
    if udf_iterable is None:
        inferred = infer_dataframe_schema(dataframe, columns)
        if inferred is not None:
            columns = inferred
            logger.info('The columns of the dataset, by the schema of the DataFrame: %s', columns)
    kwargs.setdefault('compression', 'zstd')
    dataset = PartedDataset(out, cast('Mapping[str, str]', columns), kwargs, on_bad_sample=on_bad_sample)
    if kwargs.get('exist_ok'):
        dataset.check_keeps(dataframe.inputFiles())
    writer = dataset.begin()
    try:
        if udf_iterable is None:
            rows = dataframe.select(*map(_quoted, columns or ())).mapInArrow(_arrow_task(writer), _RESULT).collect()
        else:
            rows = dataframe.mapInPandas(_pandas_task(writer, udf_iterable, dict(udf_kwargs or {})), _RESULT).collect()
        parts = [WrittenPart(*row[:-1], index=bytes(row[-1])) for row in rows]
        dataset.finish(parts, merge_index=merge_index)
    except BaseException:
        dataset.abort()
        raise
    return (str(dataset.folder or ''), dataset.remote or ''), sum(part.skipped for part in parts)


def _check_installed(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingDependencyError(
            f'dataframe_to_mds needs {" and ".join(missing)}, not installed here: pip install "headrace[spark]".'
        )


def _check_arguments(dataframe: Any, kwargs: Mapping[str, Any], udf_iterable: Udf | None) -> None:
    if not hasattr(dataframe, 'mapInArrow'):
        raise ConfigError(
            f'dataframe_to_mds takes a Spark DataFrame, but got a {type(dataframe).__name__}. Make one, as with '
            f'spark.createDataFrame or spark.read.'
        )
    if not kwargs.get('out'):
        raise ConfigError(
            '`mds_kwargs` of dataframe_to_mds names the place of the dataset as `out`, but lacks it. Pass for example '
            "mds_kwargs={'out': 's3://bucket/data'}."
        )
    if udf_iterable is not None and not kwargs.get('columns'):
        raise ConfigError(
            'With `udf_iterable`, `mds_kwargs` gives the `columns` of the samples that it returns, but lacks them. '
            "Pass for example mds_kwargs={'out': ..., 'columns': {'tokens': 'ndarray:int32'}}."
        )


def _quoted(name: str) -> str:
    """A column's name as Spark reads it, with dots that are not paths into structs."""
    return f'`{name.replace("`", "``")}`'


def _arrow_task(writer: PartWriter) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        done = write_partition(writer, _partition(), batches)
        fields = zip(_FIELDS, (pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.string(), pa.binary()), strict=True)
        yield pa.RecordBatch.from_pylist([_row(done)], pa.schema(list(fields)))

    return task


def _pandas_task(
    writer: PartWriter, udf: Udf, udf_kwargs: Mapping[str, Any]
) -> Callable[[Iterable[Any]], Iterator[pd.DataFrame]]:
    def task(frames: Iterable[Any]) -> Iterator[pd.DataFrame]:
        import pandas as pd

        yield pd.DataFrame([_row(write_samples(writer, _partition(), frames, udf, udf_kwargs))])

    return task


def _row(part: WrittenPart) -> dict[str, Any]:
    return {name: getattr(part, name) for name in _FIELDS}


def write_partition(writer: PartWriter, number: int, batches: Iterable[pa.RecordBatch]) -> WrittenPart:
    with writer.open(number) as part:
        for batch in batches:
            part.add_batch(columns_of(batch, writer.columns))
        return part.finish()


def write_samples(
    writer: PartWriter, number: int, frames: Iterable[pd.DataFrame], udf: Udf, udf_kwargs: Mapping[str, Any]
) -> WrittenPart:
    """Write the samples that a function makes of the pandas frames of a partition as a part."""
    with writer.open(number) as part:
        for frame in frames:
            samples: Any = udf(frame, **udf_kwargs)
            if not isinstance(samples, Iterable):
                raise ConfigError(
                    f'`udf_iterable` returns an iterable of samples, but returned a {type(samples).__name__}. Return a '
                    f'list of dicts, or yield dicts.'
                )
            for sample in cast('Iterable[Mapping[str, Any]]', samples):
                part.add(sample)
        return part.finish()


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, 'tasks run in executors'
    return context.partitionId()


def infer_dataframe_schema(
    dataframe: DataFrame, user_defined_cols: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """The encoding of each column of a DataFrame; or a check of given ones.

    The encodings are those of the same types in Parquet. MosaicML Streaming's differ for bytes and shorts, which it
    stores unsigned. It refuses booleans, times, structs and maps.

    Args:
        dataframe: Its schema is read, no data.
        user_defined_cols: encodings to check. None: infer them.

    Returns:
        The encodings; None with `user_defined_cols`.

    Raises:
        FormatError: no encoding stores a column.
        ConfigError: a given encoding is for no column, or not for the column's type.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        schema = to_arrow_schema(dataframe.schema)
    except PySparkTypeError as error:
        raise ConfigError(
            f'A column of the DataFrame has no Arrow type: {error} Cast the column, or drop it.'
        ) from error
    if user_defined_cols is None:
        return infer_columns(schema, source='the DataFrame')
    check_columns(user_defined_cols, schema, source='the DataFrame')
    return None
