"""Spark DataFrames to MDS: the tasks' functions in this process, and real Spark in slow tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import LocalDataset
from headrace.convert import dataframe_to_mds, infer_dataframe_schema
from headrace.convert.parts import PartedDataset
from headrace.convert.spark import write_samples
from headrace.errors import ConfigError, FormatError
from tests.support.programs.processes import clean_environment, run_well

pa = pytest.importorskip('pyarrow')
pd = pytest.importorskip('pandas')
T = pytest.importorskip('pyspark.sql.types')


def frame_of(**types: Any) -> Any:
    """A DataFrame, as the inference of its schema sees it. A real one needs a JVM."""
    return SimpleNamespace(schema=T.StructType([T.StructField(name, kind) for name, kind in types.items()]))


# Types, their encodings, and MosaicML Streaming's where it is another.
TYPES: list[tuple[Any, str, str | None]] = [
    (T.ByteType(), 'int8', 'uint8'),
    (T.ShortType(), 'int16', 'uint16'),
    (T.IntegerType(), 'int32', 'int32'),
    (T.LongType(), 'int64', 'int64'),
    (T.FloatType(), 'float32', 'float32'),
    (T.DoubleType(), 'float64', 'float64'),
    (T.DecimalType(10, 2), 'str_decimal', 'str_decimal'),
    (T.StringType(), 'str', 'str'),
    (T.BinaryType(), 'bytes', 'bytes'),
    (T.ArrayType(T.IntegerType()), 'ndarray:int32', 'ndarray:int32'),
    (T.ArrayType(T.ShortType()), 'ndarray:int16', 'ndarray:int16'),
    (T.ArrayType(T.LongType()), 'ndarray:int64', 'ndarray:int64'),
    (T.ArrayType(T.FloatType()), 'ndarray:float32', 'ndarray:float32'),
    (T.ArrayType(T.DoubleType()), 'ndarray:float64', 'ndarray:float64'),
    (T.BooleanType(), 'uint8', None),
    (T.TimestampType(), 'int64', None),
    (T.DateType(), 'int64', None),
    (T.ArrayType(T.StringType()), 'json', None),
    (T.MapType(T.StringType(), T.LongType()), 'json', None),
    (T.StructType([T.StructField('a', T.ArrayType(T.StringType()))]), 'json', None),
]


@pytest.mark.parametrize(('kind', 'encoding', 'theirs'), TYPES, ids=lambda value: str(value)[:40])
def test_inferred_encodings(kind: Any, encoding: str, theirs: str | None) -> None:
    assert infer_dataframe_schema(frame_of(x=kind)) == {'x': encoding}
    assert infer_dataframe_schema(frame_of(x=kind, y=T.LongType()), {'x': encoding}) is None
    if theirs is not None:
        assert infer_dataframe_schema(frame_of(x=kind), {'x': theirs}) is None


def test_inferred_encodings_are_those_of_mosaicml_streaming(mosaicml_streaming: Any) -> None:
    converter = pytest.importorskip('streaming.base.converters')
    for kind, _, theirs in TYPES:
        if theirs is not None:
            assert converter.infer_dataframe_schema(frame_of(x=kind)) == {'x': theirs}
        else:
            with pytest.raises(ValueError, match='is not supported'):
                converter.infer_dataframe_schema(frame_of(x=kind))


@pytest.mark.parametrize(
    ('kind', 'encoding'),
    [
        (T.StringType(), 'int'),
        (T.LongType(), 'str'),
        (T.BinaryType(), 'str'),
        (T.DoubleType(), 'int64'),
        (T.ArrayType(T.LongType()), 'int64'),
        (T.BinaryType(), 'json'),
        (T.StringType(), 'jpeg'),
    ],
)
def test_encodings_that_do_not_store_a_type_are_refused(kind: Any, encoding: str) -> None:
    with pytest.raises(ConfigError, match="Mismatched types: column 'x'"):
        infer_dataframe_schema(frame_of(x=kind), {'x': encoding})


def test_types_and_columns_without_encoding_are_refused() -> None:
    with pytest.raises((ConfigError, FormatError), match="column 'x'|no Arrow type"):
        infer_dataframe_schema(frame_of(x=T.CalendarIntervalType()))
    with pytest.raises(ConfigError, match="'z' is none of"):
        infer_dataframe_schema(frame_of(x=T.LongType()), {'z': 'int'})


class Frame:
    """A DataFrame up to the checks before a task."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def mapInArrow(self, *_: object) -> Any:
        raise AssertionError('no task is started')

    def select(self, *_: str) -> Frame:
        return self


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'dataframe': None}, 'takes a Spark DataFrame, but got a NoneType'),
        ({'mds_kwargs': None}, 'names the place of the dataset as `out`'),
        ({'mds_kwargs': {'columns': {'x': 'int'}}}, 'names the place of the dataset as `out`'),
        ({'mds_kwargs': {'out': 'd'}, 'udf_iterable': list}, 'gives the `columns`'),
        ({'mds_kwargs': {'out': 'd', 'colums': {}}}, 'Invalid Writer argument'),
        ({'on_bad_sample': 'ignore'}, "is 'raise' or 'skip'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    defaults = {'dataframe': Frame(frame_of(x=T.LongType()).schema), 'mds_kwargs': {'out': str(tmp_path / 'd')}}
    with pytest.raises(ConfigError, match=message):
        dataframe_to_mds(**{**defaults, **arguments})
    assert not (tmp_path / 'd').exists()


def test_files_of_a_dataframe_are_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / 'a b' / 'rows.csv'
    path.parent.mkdir()
    path.write_text('1')
    frame = frame_of(x=T.LongType())
    frame.mapInArrow, frame.inputFiles = None, lambda: [path.as_uri(), 's3a://bucket/data/rows.csv']
    for out in (str(path.parent), 's3://bucket/data', (str(tmp_path), 's3://bucket/out')):
        with pytest.raises(ConfigError, match='would delete'):
            dataframe_to_mds(frame, mds_kwargs={'out': out, 'exist_ok': True})
    assert path.read_text() == '1'


def test_mds_kwargs_are_not_changed(tmp_path: Path) -> None:
    kwargs = {'out': str(tmp_path / 'd')}
    with pytest.raises(AssertionError, match='no task'):
        dataframe_to_mds(Frame(frame_of(x=T.LongType()).schema), mds_kwargs=kwargs)  # type: ignore[arg-type]
    assert kwargs == {'out': str(tmp_path / 'd')}


def test_samples_of_a_function(tmp_path: Path) -> None:
    def halves(frame: Any, *, by: int) -> Iterator[dict[str, Any]]:
        for text in frame['text']:
            yield {'half': text[: len(text) // by]}

    dataset = PartedDataset(str(tmp_path / 'd'), {'half': 'str'}, {})
    frames = [pd.DataFrame({'text': ['abcd']}), pd.DataFrame({'text': ['efghij', 'kl']})]
    dataset.finish([write_samples(dataset.begin(), 0, frames, halves, {'by': 2})])
    assert [sample['half'] for sample in LocalDataset(str(tmp_path / 'd'))] == ['ab', 'efg', 'k']


def test_a_function_that_returns_no_samples(tmp_path: Path) -> None:
    dataset = PartedDataset(str(tmp_path / 'd'), {'half': 'str'}, {})
    with pytest.raises(ConfigError, match='returned a int'):
        write_samples(dataset.begin(), 0, [pd.DataFrame({'text': ['abcd']})], len, {})  # type: ignore[arg-type]
    dataset.abort()


@pytest.fixture(scope='module')
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ['PYSPARK_PYTHON'] = sys.executable
    session = (
        SparkSession.builder.master('local[2,4]')
        .config('spark.ui.enabled', 'false')
        .config('spark.driver.host', '127.0.0.1')
        .config('spark.driver.bindAddress', '127.0.0.1')
        .getOrCreate()
    )
    session.sparkContext.setLogLevel('OFF')
    yield session
    session.stop()


def rows_frame(spark: Any, rows: int = 100_000, partitions: int = 8) -> Any:
    import pyspark.sql.functions as F

    return spark.range(0, rows, 1, partitions).select(
        'id',
        F.concat(F.lit('text '), F.col('id').cast('string')).alias('text'),
        F.array(F.col('id').cast('int'), F.lit(1)).alias('tokens'),
    )


def check_complete(root: Path, rows: int = 100_000) -> None:
    """Every row once, in order, and no file that the index does not list."""
    ids = [int(sample['id']) for sample in LocalDataset(str(root))]
    assert ids == list(range(rows))
    names = {path.relative_to(root).parts[0] for path in root.rglob('*') if path.is_file()}
    assert len(names) == 9
    assert not list(root.rglob('.headrace-*'))


@pytest.mark.slow
def test_a_hundred_thousand_rows(spark: Any, tmp_path: Path) -> None:
    out = {'out': str(tmp_path / 'd'), 'size_limit': '256kb'}
    assert dataframe_to_mds(rows_frame(spark), mds_kwargs=out) == ((str(tmp_path / 'd'), ''), 0)
    check_complete(tmp_path / 'd')


@pytest.mark.slow
def test_the_same_dataset_as_of_mosaicml_streaming(spark: Any, tmp_path: Path, mosaicml_streaming: Any) -> None:
    theirs = pytest.importorskip('streaming.base.converters').dataframe_to_mds

    def doubled(frame: Any, by: int) -> Iterator[dict[str, Any]]:
        for value in frame['id']:
            yield {'double': by * int(value)}

    frame = rows_frame(spark, 2_000, 3).selectExpr('id', 'text', 'cast(tokens as array<int>) tokens')
    udf: dict[str, Any] = {'udf_iterable': doubled, 'udf_kwargs': {'by': 2}}
    found = []
    for name, convert in {'ours': dataframe_to_mds, 'theirs': theirs}.items():
        convert(frame, True, {'out': str(tmp_path / name / 'plain')})
        columns = {'double': 'int'}
        convert(frame, mds_kwargs={'out': str(tmp_path / name / 'udf'), 'columns': columns, 'compression': None}, **udf)
        # Theirs are in the order in which tasks were started, with their numbers as names.
        plain = [dict(sample) for sample in LocalDataset(str(tmp_path / name / 'plain'))]
        double = [dict(sample) for sample in LocalDataset(str(tmp_path / name / 'udf'))]
        found.append((sorted(map(repr, plain)), sorted(map(repr, double))))
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_killed_python_worker_leaves_neither_duplicates_nor_holes(spark: Any, tmp_path: Path) -> None:
    flag = tmp_path / 'killed'

    def once_killed(frame: Any) -> Iterator[dict[str, Any]]:
        for value in frame['id']:
            if value == 60_000 and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield {'id': int(value)}

    kwargs = {'out': str(tmp_path / 'd'), 'columns': {'id': 'int'}, 'size_limit': '16kb'}
    dataframe_to_mds(rows_frame(spark), mds_kwargs=kwargs, udf_iterable=once_killed)
    assert flag.exists()
    check_complete(tmp_path / 'd')


@pytest.mark.slow
def test_a_task_that_always_fails_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    def failing(frame: Any) -> Iterator[dict[str, Any]]:
        for value in frame['id']:
            yield {'id': 'text' if value == 60_000 else int(value)}

    kwargs = {'out': str(tmp_path / 'd'), 'columns': {'id': 'int'}, 'size_limit': '16kb'}
    with pytest.raises(Exception, match="column 'id'"):
        dataframe_to_mds(rows_frame(spark), mds_kwargs=kwargs, udf_iterable=failing)
    assert os.listdir(tmp_path / 'd') == []
    assert dataframe_to_mds(rows_frame(spark), mds_kwargs=kwargs, udf_iterable=failing, on_bad_sample='skip') == (
        (str(tmp_path / 'd'), ''),
        1,
    )


CLUSTER = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from headrace.convert import dataframe_to_mds
from test_spark import rows_frame

out, flag = Path(sys.argv[1]), Path(sys.argv[2])
builder = SparkSession.builder.master('local-cluster[2,1,1024]')
for name, value in {
    'spark.ui.enabled': 'false', 'spark.driver.host': '127.0.0.1', 'spark.driver.bindAddress': '127.0.0.1',
    'spark.executor.memory': '512m', 'spark.executorEnv.PYTHONPATH': os.environ['PYTHONPATH'],
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def lose(frame):
    for value in frame['id']:
        if value == 30_000 and not flag.exists():
            flag.touch()
            # The executor is the parent of the daemon that forks the Python workers.
            daemon = os.getppid()
            os.kill(int(Path(f'/proc/{daemon}/stat').read_text().rpartition(')')[2].split()[1]), signal.SIGKILL)
        yield {'id': int(value)}

kwargs = {'out': str(out), 'columns': {'id': 'int'}, 'size_limit': '16kb'}
dataframe_to_mds(rows_frame(spark), mds_kwargs=kwargs, udf_iterable=lose)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # two executors and a third start
@pytest.mark.skipif(not Path('/proc/self/stat').exists(), reason='the executor is found with /proc')
def test_a_lost_executor_leaves_neither_duplicates_nor_holes(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environ = clean_environment(PYSPARK_PYTHON=sys.executable)
    environ['PYTHONPATH'] = os.pathsep.join([environ['PYTHONPATH'], paths])
    command = [sys.executable, '-c', CLUSTER, str(tmp_path / 'd'), str(tmp_path / 'lost')]
    run_well(command, cwd=tmp_path, environ=environ, timeout=560)
    assert (tmp_path / 'lost').exists()
    check_complete(tmp_path / 'd')
